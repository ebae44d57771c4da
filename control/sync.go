package control

import "time"

// began notes that a pass takes changes or a configuration in.
func (l *Loop) began(s *Sync) {
	if l.Observer == nil {
		return
	}
	o := l.outstanding
	if o == nil {
		l.outstanding = s
		return
	}
	o.Services += s.Services
	o.EndpointSlices += s.EndpointSlices
	o.Full = o.Full || s.Full
	if room := maxTriggers - len(o.Triggers); room > 0 {
		o.Triggers = append(o.Triggers, s.Triggers[:min(room, len(s.Triggers))]...)
	}
}

// completed tells the observer of the passes that are published and steered by. While
// the kernel program refuses, they are outstanding together.
func (l *Loop) completed() {
	if l.outstanding == nil || !l.replaced || l.pending.opens() > 0 {
		return
	}
	s := l.outstanding
	l.outstanding = nil
	s.Took = time.Since(s.Started)
	l.Observer.Synced(s)
}

// sync describes a pass over changes that starts now.
func (c *Changes) sync(full bool) *Sync {
	s := &Sync{
		Queued: c.queued, Started: time.Now(), Full: full,
		Services: len(c.services), EndpointSlices: len(c.slices), Triggers: c.triggers,
	}
	if s.Queued.IsZero() {
		s.Queued = s.Started
	}
	return s
}

// tell hands on what others than workers follow: health check node ports and the
// Node of this gateway.
func (l *Loop) tell(ch *Changes) {
	if edits := l.Compiler.healthEdits; l.HealthChecks != nil && (!l.toldHealth || l.told != edits) {
		l.toldHealth, l.told = true, edits
		l.HealthChecks.SetHealthChecks(l.Compiler.HealthChecks())
	}
	for _, n := range ch.nodes {
		if l.NodeChanged != nil && n.id.Name == l.Compiler.cfg.NodeName {
			l.NodeChanged(n.now.info())
		}
	}
}
