package loop

import (
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

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
	if room := tracker.MaxTriggers - len(o.Triggers); room > 0 {
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

// tell hands on what others than workers follow: health check node ports and the
// Node of this gateway.
func (l *Loop) tell(ch *objects.Changes) {
	if edits := l.Compiler.HealthEdits(); l.HealthChecks != nil && (!l.toldHealth || l.told != edits) {
		l.toldHealth, l.told = true, edits
		l.HealthChecks.SetHealthChecks(l.Compiler.HealthChecks())
	}
	for _, n := range ch.Nodes {
		if l.NodeChanged != nil && n.ID.Name == l.Compiler.Config().NodeName {
			l.NodeChanged(n.Now.Info())
		}
	}
}

// syncOf describes a pass over changes that starts now.
func syncOf(c *objects.Changes, full bool) *Sync {
	s := &Sync{
		Queued: c.Queued, Started: time.Now(), Full: full,
		Services: len(c.Services), EndpointSlices: len(c.Slices), Triggers: c.Triggers,
	}
	if s.Queued.IsZero() {
		s.Queued = s.Started
	}
	return s
}
