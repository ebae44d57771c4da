package loop

import (
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// passBegan adds a pass, over changes or over a configuration, to the outstanding passes.
func (l *Loop) passBegan(s *Sync) {
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

// completed reports the outstanding passes to the observer once they are published and steered.
// While the kernel program refuses entries they are outstanding together.
func (l *Loop) completed() {
	if l.outstanding == nil || !l.replaced || l.pending.opens() > 0 {
		return
	}
	s := l.outstanding
	l.outstanding = nil
	s.Took = time.Since(s.Started)
	l.Observer.Synced(s)
}

// notify passes on results that are not part of a snapshot: health check node ports and the Node of
// this gateway.
func (l *Loop) notify(ch *objects.Changes) {
	if edits := l.Compiler.HealthEdits(); l.HealthChecks != nil && (!l.healthNotified || l.healthEdits != edits) {
		l.healthNotified, l.healthEdits = true, edits
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
