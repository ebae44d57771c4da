package endpointhealth

import (
	"maps"
	"net/netip"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Parameters of passive checks.
const (
	// SampleEvery is the interval in which Sample must be called.
	SampleEvery = 500 * time.Millisecond
	// An endpoint is suspected if at least minSilent flows were opened since its last SYN-ACK, and
	// either all were refused or the first one was opened at least one sample ago: so an answer has
	// had SampleEvery to arrive.
	minSilent = 4
	// holdOff is the least time between two suspicions of an endpoint.
	holdOff = 5 * time.Second
	// unreturnedFor is how long Unreturned reports an endpoint that gets no more flows.
	unreturnedFor = 10 * time.Minute
	// maxChecking bounds the endpoints that are checked by suspicion at a time. Endpoints that
	// are down count, too.
	maxChecking = 1024
)

// PassiveCheck is the check of a suspected endpoint. A client's connection has failed already, so
// it takes fewer failures than an active check, one after the other. An endpoint that is down is
// checked each second.
var PassiveCheck = objects.Check{
	Kind: objects.CheckTCP, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 2,
}

// Tally has the counts of a backend by all workers together since the start.
type Tally struct {
	Opened   uint64 // flows created towards it
	Answered uint64 // flows whose first answer was a SYN-ACK
	Refused  uint64 // flows whose first answer was an RST
}

// passive is the state of passive checks, by index of backends.
type passive struct {
	of       []suspect
	held     map[compiler.Endpoint]time.Time // no suspicion before
	suspects map[*endpoint]bool              // suspected endpoints, which are checked
	places   map[string]int                  // number of suspects, by namespace
	unbound  bool                            // some suspects were remembered, and have no ref
	// unreturned has the ports of routed Services with endpoints that answer checks and no client.
	unreturned map[port]unreturned
	// unchecked counts the suspicious endpoints without room in the last Sample. denied has their
	// ports, with the time of the last such Sample.
	unchecked int
	denied    map[port]time.Time
}

// unreturned is an endpoint of a routed Service that answers checks and no client.
type unreturned struct {
	endpoint compiler.Endpoint
	service  services.ServiceID
	at       time.Time // when that was last noticed
}

// suspect is the state of passive checks of one backend.
type suspect struct {
	ref              services.BackendRef
	opened, answered uint64
	refused          uint64 // Tally.Refused at the last answer
	// silent counts flows opened since the last answer, waited the samples since the first one.
	silent, waited uint32
}

func newPassive() passive {
	return passive{held: map[compiler.Endpoint]time.Time{}, suspects: map[*endpoint]bool{}, places: map[string]int{},
		denied: map[port]time.Time{}, unreturned: map[port]unreturned{}}
}

func (p *passive) add(e *endpoint) {
	p.suspects[e] = true
	p.places[e.name.Namespace]++
}

func (p *passive) remove(e *endpoint) {
	if !p.suspects[e] {
		return
	}
	delete(p.suspects, e)
	if p.places[e.name.Namespace]--; p.places[e.name.Namespace] == 0 {
		delete(p.places, e.name.Namespace)
	}
}

// mostSuspects returns the maximum number of suspects of a namespace.
func (t *Tracker) mostSuspects() int {
	return max(1, min(int(t.share(maxChecking)), maxChecking/2))
}

// full reports whether a namespace has no room for another suspect. As with checks under way
// (allows), it may have at most its share, and no more than is free.
func (t *Tracker) full(namespace string) bool {
	p := &t.passed
	return p.places[namespace] >= min(t.mostSuspects(), maxChecking-len(p.suspects))
}

// DeniedSuspects returns the service ports with endpoints that answered no client and for whose
// check there was no room, now or within the last minute. These endpoints still get flows.
func (t *Tracker) DeniedSuspects(now time.Time) []Denial { return lately(t.passed.denied, now) }

// observe adds a tally, and reports whether the backend is suspicious.
func (s *suspect) observe(ref services.BackendRef, t Tally) bool {
	if s.ref != ref || t.Opened < s.opened || t.Answered < s.answered {
		*s = suspect{ref: ref, opened: t.Opened, answered: t.Answered, refused: t.Refused}
		return false
	}
	opened, answered := t.Opened-s.opened, t.Answered-s.answered
	s.opened, s.answered = t.Opened, t.Answered
	switch {
	case answered > 0:
		s.silent, s.waited, s.refused = 0, 0, t.Refused
		return false
	case s.silent > 0:
		s.waited++
	}
	s.silent = uint32(min(uint64(s.silent)+opened, minSilent))
	return s.silent >= minSilent && (s.waited > 0 || t.Refused-s.refused >= minSilent)
}

// Sample reads the counts of workers: tally returns the counts of one backend. It must be called
// each SampleEvery. It removes the state of backends that are gone.
func (t *Tracker) Sample(s *services.Snapshot, tally func(services.BackendRef) Tally, now time.Time) {
	if !t.cfg.Passive {
		return
	}
	p := &t.passed
	p.unchecked = 0
	for e, until := range p.held {
		if !now.Before(until) {
			delete(p.held, e)
		}
	}
	for of, u := range p.unreturned {
		if service := s.Service(u.service); service == nil || !service.Routed || now.Sub(u.at) > unreturnedFor {
			delete(p.unreturned, of)
		}
	}
	s.Backends(func(b *services.Backend) bool {
		if b.Proto != header.ProtoTCP {
			return true
		}
		i := int(b.Ref.Index())
		for i >= len(p.of) {
			p.of = append(p.of, make([]suspect, max(1024, i+1-len(p.of)))...)
		}
		at := &p.of[i]
		before := at.answered
		known := at.ref == b.Ref
		if at.observe(b.Ref, tally(b.Ref)) {
			t.suspect(s, b, now)
		} else if known && at.answered != before && len(p.suspects)+len(p.unreturned) > 0 {
			t.answered(s, b, now)
		}
		return true
	})
	t.bind(s)
	t.endPassive(func(e *endpoint) bool {
		b := s.Backend(e.ref)
		return b == nil || b.Flags&services.BackendReady == 0
	})
}

func nameOf(s *services.Snapshot, b *services.Backend) (e compiler.Endpoint, ok bool) {
	p := s.Service(b.Service)
	if p == nil {
		return e, false
	}
	return compiler.Endpoint{Namespace: p.Namespace, Service: p.Name, PortName: p.PortName, Proto: p.Proto,
		Addr: b.Addr, Port: b.Port}, true
}

// suspect starts passive checks of a backend, or makes its active check due now.
func (t *Tracker) suspect(s *services.Snapshot, b *services.Backend, now time.Time) {
	name, ok := nameOf(s, b)
	if !ok || t.exempt[portOf(&name)] || now.Before(t.passed.held[name]) {
		return
	}
	e := t.by[name]
	switch {
	case e != nil && (e.passive || e.down || e.running || e.count > 0):
		return // that check decides
	case e != nil:
		t.passed.held[name] = now.Add(holdOff)
		t.schedule(e, now)
	case t.full(name.Namespace):
		t.passed.unchecked++
		t.passed.denied[portOf(&name)] = now
		return
	default:
		e = &endpoint{name: name, target: netip.AddrPortFrom(b.Addr.Netip(), b.Port), check: PassiveCheck,
			passive: true, ref: b.Ref, since: now}
		t.by[name] = e
		t.passed.add(e)
		t.schedule(e, now)
	}
	if e.routed = 0; s.Service(b.Service).Routed {
		e.routed = b.Service
	}
	t.counts.Suspected++
}

// accepts is called when an endpoint has answered a check. If it is suspected because no client of
// a routed Service gets an answer, its answers to clients take another way.
func (t *Tracker) accepts(e *endpoint, now time.Time) {
	if e.routed != 0 {
		t.passed.unreturned[portOf(&e.name)] = unreturned{e.name, e.routed, now}
	}
	e.routed = 0
}

// Unreturned returns, sorted, the ports of routed Services with endpoints that answer checks and no
// client: the network does not route their answers through this gateway.
func (t *Tracker) Unreturned() []Denial {
	return denials(maps.Keys(t.passed.unreturned))
}

// answered ends the suspicion of a backend that has answered a client. One that is down may still
// be opening flows by an older snapshot, so it must pass its check.
func (t *Tracker) answered(s *services.Snapshot, b *services.Backend, now time.Time) {
	name, _ := nameOf(s, b)
	if of := portOf(&name); t.passed.unreturned[of].endpoint == name {
		delete(t.passed.unreturned, of)
	}
	if e := t.by[name]; e != nil && e.passive && !e.down {
		t.clear(e, now)
	}
}

// clear ends the suspicion of an endpoint. It can be suspected again after holdOff.
func (t *Tracker) clear(e *endpoint, now time.Time) {
	t.counts.Cleared++
	t.passed.held[e.name] = now.Add(holdOff)
	t.remove(e)
}

// endPassive ends the passive checks of the endpoints for which which returns true.
func (t *Tracker) endPassive(which func(*endpoint) bool) {
	for e := range t.passed.suspects {
		if which(e) {
			t.remove(e)
		}
	}
}
