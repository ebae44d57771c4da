package endpointhealth

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// Known is a Tracker's state of one checked endpoint, in the form that another process reads.
type Known struct {
	Endpoint compiler.Endpoint
	Kind     objects.CheckKind
	Passive  bool
	Down     bool
	Count    uint8 // number of results in a row that contradict Down
	Since    time.Time
	Last     LastResult
	LastAt   time.Time
	// Share is the part of the weight in slow start, in tenths, 0 when it is over; Raised is when
	// the next tenth is.
	Share  uint8
	Raised time.Time
}

// LastResult is a Result in the form that another process reads and shows. The form is part of a
// protocol, so it is a type of its own.
type LastResult struct {
	OK      bool
	Detail  string
	Took    time.Duration
	Skipped bool
}

// Known returns the states of all checked endpoints.
func (t *Tracker) Known() (list []Known) {
	for name, e := range t.by {
		last := LastResult{OK: e.last.OK, Detail: e.last.Detail, Took: e.last.Took, Skipped: e.last.Skipped}
		list = append(list, Known{Endpoint: name, Kind: e.check.Kind, Passive: e.passive, Down: e.down, Count: e.count,
			Since: e.since, Last: last, LastAt: e.lastAt, Share: e.share, Raised: e.raised})
	}
	return list
}

// Remember makes a new Tracker continue from the state of a previous process. It returns the health
// of the endpoints, as Changes would. It must be the first call. Times in the list have no
// monotonic reading, so the next check and the next step of a slow start are due relative to now.
//
// An endpoint is remembered until the first SetPorts, which must follow, and stays if it has a
// check of the same kind then. One with a passive check stays until the first Sample, and then if
// it is a backend.
func (t *Tracker) Remember(list []Known, now time.Time) []compiler.EndpointHealth {
	for i := range list {
		k := &list[i]
		if k.Passive && (!t.cfg.Passive || t.passed.places[k.Endpoint.Namespace] >= t.mostSuspects()) {
			continue
		}
		e := &endpoint{name: k.Endpoint, target: netip.AddrPortFrom(k.Endpoint.Addr.Netip(), k.Endpoint.Port),
			check: objects.Check{Kind: k.Kind}, passive: k.Passive, down: k.Down, count: k.Count, since: k.Since,
			last:   Result{OK: k.Last.OK, Detail: k.Last.Detail, Took: k.Last.Took, Skipped: k.Last.Skipped},
			lastAt: k.LastAt, started: now.Add(min(k.LastAt.Sub(now), 0)), share: k.Share, raised: k.Raised}
		t.by[e.name] = e
		if e.down {
			t.counts.Down++
		}
		if e.passive {
			e.check = PassiveCheck
			t.passed.add(e)
			t.passed.unbound = true
			t.schedule(e, now)
		} else {
			t.remembered = append(t.remembered, e)
		}
		if e.down || e.share != 0 {
			t.note(e)
		}
	}
	return t.Changes()
}

// resume gives a remembered endpoint its check, as it is now.
func (t *Tracker) resume(e *endpoint, now time.Time) {
	if e.share != 0 {
		if e.check.SlowStart > 0 {
			e.raised = now.Add(min(e.raised.Sub(now), e.check.SlowStart/shares))
			t.slow[e] = true
		} else {
			e.share = 0
			t.note(e)
		}
	}
	t.schedule(e, t.next(e, now))
}

// bind finds the backends of remembered endpoints.
func (t *Tracker) bind(s *services.Snapshot) {
	if !t.passed.unbound {
		return
	}
	t.passed.unbound = false
	s.Backends(func(b *services.Backend) bool {
		if name, ok := nameOf(s, b); ok {
			if e := t.by[name]; e != nil && e.passive {
				e.ref = b.Ref
			}
		}
		return true
	})
}

// forget ends the checks of remembered endpoints that are no longer checked.
func (t *Tracker) forget() {
	for _, e := range t.remembered {
		if e.generation != t.generation && !e.gone {
			t.remove(e)
		}
	}
	t.remembered = nil
}
