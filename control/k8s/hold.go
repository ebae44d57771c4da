package k8s

import (
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// hold is between the stores and the Tracker. If the endpoints of a Service vanish all at once
// without having been seen terminating, it delays the new versions of their slices for
// Config.StaleEndpointTimeout, and the Tracker keeps the former ones. A restarted or faulty
// controller removes endpoints like that; a deployment does not.
//
// A Service is held, for each family separately, when every endpoint that was ready is in none of
// its slices any more. While some are left it is not held: it is better to send to those than to
// endpoints that may be dead. Slices are written one by one, so a slice that loses all its ready
// endpoints while other slices still have some waits for gather, in case the others follow.
//
// These changes do not wait, because the API server explains them or an operator made them:
//   - an endpoint that is present and not ready, or terminating;
//   - the removal of one that was not ready, or terminating, also if others vanish with it: if its
//     slice waits, the Tracker gets the former version without it;
//   - a ready endpoint, new or again: the Service has pods, and all waiting changes are applied;
//   - the deletion of the Service: all waiting changes are applied;
//   - an endpoint that moved to another slice.
type hold struct {
	to func(*tracker.Batch)

	mu       sync.Mutex
	period   time.Duration // 0: nothing is held or remembered
	services map[holdKey]*heldService
	owner    map[objects.ObjectID]holdKey // of slices
	waiting  map[holdKey]*heldService     // Services with a slice that waits
	timer    *time.Timer
	next     time.Time // when it expires; zero if it does not run
}

// gather is how long a slice without its endpoints waits for the others of its Service.
const gather = time.Second

// holdKey is a Service in one family: IPv6 endpoints are of no use to IPv4 clients.
type holdKey struct {
	namespace, name string
	family          discoveryv1.AddressType
}

// heldService is what hold keeps of a Service in one family.
type heldService struct {
	exists   bool
	slices   map[objects.ObjectID]*heldSlice // nil while it has none
	since    time.Time                       // all is held since then; zero if not
	until    time.Time                       // and until then
	reported time.Time                       // the until of the Problem that the Tracker has
	lost     int                             // ready endpoints when that began
}

// heldSlice is an EndpointSlice as the Tracker has it, and the version that waits.
type heldSlice struct {
	from    objects.Source
	gone    bool // nothing is left to remember
	given   []seen
	object  *discoveryv1.EndpointSlice // the version of given if not all of its endpoints are ready; see prune
	waiting *change                    // nil if the Tracker has the newest
	next    []seen                     // of waiting
	until   time.Time
}

func newHold(to func(*tracker.Batch), period time.Duration) *hold {
	return &hold{
		to: to, period: period, services: map[holdKey]*heldService{},
		owner: map[objects.ObjectID]holdKey{}, waiting: map[holdKey]*heldService{},
	}
}

// setPeriod changes the period. It shortens the time of Services that are held already, but does
// not lengthen it. With 0 all waiting changes are applied at once. It reports whether everything
// must be listed again, so that hold has the endpoints.
func (h *hold) setPeriod(d time.Duration) (relist bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	relist = h.period == 0 && d > 0
	h.period = d
	b, now := &tracker.Batch{}, time.Now()
	for n, s := range h.waiting {
		if until := s.since.Add(d); !s.since.IsZero() && until.Before(s.until) {
			s.until = until
			s.wait(until)
		}
		s.release(b, func(slice *heldSlice) bool { return d == 0 || !now.Before(slice.until) })
		h.tidy(n, s, b)
	}
	if d == 0 {
		clear(h.services)
		clear(h.owner)
	}
	h.to(b)
	return relist
}

// apply takes changes, and passes changes that need not wait to the Tracker, in one batch.
func (h *hold) apply(from objects.Source, changes []change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, touched := &tracker.Batch{}, map[holdKey]bool{}
	for i := range changes {
		c := &changes[i]
		if h.period > 0 && h.keep(from, c, touched) {
			continue
		}
		add(b, from, c)
	}
	now := time.Now()
	for n := range touched {
		h.decide(n, now, b)
	}
	h.to(b)
}

// keep records a change for its Service. It returns true if decide will handle the change.
func (h *hold) keep(from objects.Source, c *change, touched map[holdKey]bool) bool {
	switch c.id.Kind {
	case objects.KindService:
		for _, family := range families {
			n := holdKey{c.id.Namespace, c.id.Name, family}
			h.service(n).exists = c.object != nil
			touched[n] = true
		}
	case objects.KindEndpointSlice:
		return h.keepSlice(from, c, touched)
	}
	return false
}

var families = [...]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

func (h *hold) service(n holdKey) *heldService {
	s := h.services[n]
	if s == nil {
		s = &heldService{}
		h.services[n] = s
	}
	return s
}

func (h *hold) keepSlice(from objects.Source, c *change, touched map[holdKey]bool) bool {
	n, owned := h.owner[c.id]
	object, _ := c.object.(*discoveryv1.EndpointSlice)
	if object != nil {
		now := holdKey{object.Namespace, object.Labels[discoveryv1.LabelServiceName], object.AddressType}
		if owned && now != n {
			delete(h.services[n].slices, c.id)
			delete(h.owner, c.id)
			touched[n] = true
		}
		n = now
	}
	if n.name == "" {
		return false
	}
	s := h.service(n)
	slice := s.slices[c.id]
	if slice == nil {
		slice = &heldSlice{from: from}
		if s.slices == nil {
			s.slices = map[objects.ObjectID]*heldSlice{}
		}
		s.slices[c.id] = slice
		h.owner[c.id] = n
	}
	kept := *c
	slice.waiting, slice.next = &kept, endpointsOf(object)
	touched[n] = true
	return true
}

// decide determines which slices of a Service wait, and passes on the others.
func (h *hold) decide(n holdKey, now time.Time, b *tracker.Batch) {
	s := h.services[n]
	e := s.compare()
	held := !s.since.IsZero()
	switch {
	case !s.exists || e.ready == 0 || e.fresh || e.left == 0 && e.explained || e.left > 0 && held:
		s.release(b, everything)
	case e.left == 0:
		if !held {
			s.since, s.until, s.lost = now, now.Add(h.period), e.ready
		}
		s.wait(s.until)
		s.release(b, func(slice *heldSlice) bool { return !e.vanished(slice) })
	default:
		for _, slice := range s.slices {
			if slice.waiting != nil && slice.until.IsZero() && e.vanished(slice) {
				slice.until = now.Add(min(gather, h.period))
			}
		}
		s.release(b, func(slice *heldSlice) bool { return !e.vanished(slice) || !now.Before(slice.until) })
	}
	for _, slice := range s.slices {
		slice.prune(&e, b)
	}
	h.tidy(n, s, b)
}

// wait makes all new versions wait until a time.
func (s *heldService) wait(until time.Time) {
	for _, slice := range s.slices {
		if slice.waiting != nil {
			slice.until = until
		}
	}
}

func everything(*heldSlice) bool { return true }

// release passes on the waiting slices that which selects.
func (s *heldService) release(b *tracker.Batch, which func(*heldSlice) bool) {
	for _, slice := range s.slices {
		if slice.waiting == nil || !which(slice) {
			continue
		}
		add(b, slice.from, slice.waiting)
		object, _ := slice.waiting.object.(*discoveryv1.EndpointSlice)
		slice.gone, slice.object = object == nil, nil
		if slices.ContainsFunc(slice.next, func(p seen) bool { return !p.ready }) {
			slice.object = object
		}
		slice.given, slice.waiting, slice.next, slice.until = slice.next, nil, nil, time.Time{}
	}
}

// tidy removes state that is no longer needed, reports whether the Service is held, and sets the
// timer.
func (h *hold) tidy(n holdKey, s *heldService, b *tracker.Batch) {
	var next time.Time
	for id, slice := range s.slices {
		switch {
		case slice.waiting != nil && (next.IsZero() || slice.until.Before(next)):
			next = slice.until
		case slice.gone:
			delete(s.slices, id)
			delete(h.owner, id)
		}
	}
	if next.IsZero() {
		s.since, s.until = time.Time{}, time.Time{}
		delete(h.waiting, n)
	} else {
		h.waiting[n] = s
		h.wake(next)
	}
	if !s.reported.Equal(s.until) {
		s.reported = s.until
		report(b, n, s)
	}
	if len(s.slices) == 0 && !s.exists {
		delete(h.services, n)
	}
}

// wake makes expire run at a time, or before.
func (h *hold) wake(at time.Time) {
	switch {
	case h.timer == nil:
		h.timer = time.AfterFunc(time.Until(at), h.expire)
	case h.next.IsZero() || at.Before(h.next):
		h.timer.Reset(time.Until(at))
	default:
		return
	}
	h.next = at
}

// expire passes on the changes whose time is over.
func (h *hold) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = time.Time{}
	b, now := &tracker.Batch{}, time.Now()
	for n, s := range h.waiting {
		s.release(b, func(slice *heldSlice) bool { return !now.Before(slice.until) })
		h.tidy(n, s, b)
	}
	h.to(b)
}

// stop stops the timer. Waiting changes are dropped.
func (h *hold) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
}

// report reports that a Service is held, or that it no longer is. The text has no time of day, so
// that a Service that is held repeatedly is the same Problem each time.
func report(b *tracker.Batch, n holdKey, s *heldService) {
	place := objects.Source{Kind: Kind, Path: fmt.Sprintf("hold/%s/%s/%s", n.namespace, n.name, n.family)}
	if s.until.IsZero() {
		b.Report(place, nil)
		return
	}
	b.Report(place, []objects.Problem{{
		Source: place, Severity: objects.Warning, Reason: objects.ReasonEndpointsHeld,
		Object: objects.ObjectID{Kind: objects.KindService, Namespace: n.namespace, Name: n.name},
		Message: fmt.Sprintf("its %d ready %s endpoints vanished at once and none was seen terminating; they are "+
			"served on for %v, or until one is ready (kubernetes.staleEndpointTimeout)",
			s.lost, n.family, s.until.Sub(s.since)),
	}})
}
