package k8s

import (
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/duequeue"
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
	queue    duequeue.Queue[*heldSlice]   // slices that wait
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

// heldService is the state of a Service in one family. decide looks only at the slices in changed:
// their newest version changed, or another slice was the first to list an address of their former
// version, or the last one that did.
type heldService struct {
	exists   bool
	slices   map[objects.ObjectID]*heldSlice // nil while it has none
	since    time.Time                       // all is held since then; zero if not
	until    time.Time                       // and until then
	reported time.Time                       // the until of the Problem that the Tracker has
	lost     int                             // ready endpoints when that began

	endpoints map[string]endpoint     // by address
	sum       evidence                // of endpoints
	waiting   map[*heldSlice]bool     // slices that wait since an earlier decide; nil if none does
	former    map[string][]*heldSlice // waiting by the addresses in given
	changed   []*heldSlice
}

// heldSlice is an EndpointSlice as the Tracker has it, and the version that waits. It is in
// hold.queue while it waits.
type heldSlice struct {
	duequeue.Timer

	from    objects.Source
	given   []seen
	object  *discoveryv1.EndpointSlice // the version of given if not all of its endpoints are ready; see prune
	waiting *change                    // nil if the Tracker has the newest
	next    []seen                     // of waiting
	changed bool                       // in heldService.changed
}

func newHold(to func(*tracker.Batch), period time.Duration) *hold {
	return &hold{
		to: to, period: period, services: map[holdKey]*heldService{},
		owner: map[objects.ObjectID]holdKey{},
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
	for n, s := range h.services {
		until := s.since.Add(d)
		if s.since.IsZero() || !until.Before(s.until) {
			continue
		}
		h.holdUntil(s, until)
		b := &tracker.Batch{}
		h.tidy(n, s, b)
		h.to(b)
	}
	h.releaseDue(time.Now(), d == 0)
	if d == 0 {
		clear(h.services)
		clear(h.owner)
	}
	h.wake()
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
	h.wake()
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
			h.drop(h.services[n], c.id)
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
			s.slices, s.endpoints = map[objects.ObjectID]*heldSlice{}, map[string]endpoint{}
		}
		s.slices[c.id] = slice
		h.owner[c.id] = n
	}
	kept, before := *c, slice.newest()
	slice.waiting, slice.next = &kept, endpointsOf(object)
	s.countNewest(slice.next, +1) // first, so that an address that stays is listed throughout
	s.countNewest(before, -1)
	s.review(slice)
	touched[n] = true
	return true
}

// review makes decide look at a waiting slice.
func (s *heldService) review(slice *heldSlice) {
	if !slice.changed {
		slice.changed = true
		s.changed = append(s.changed, slice)
	}
}

// drop forgets a slice that is another Service's now.
func (h *hold) drop(s *heldService, id objects.ObjectID) {
	slice := s.slices[id]
	s.countNewest(slice.newest(), -1)
	s.countGiven(slice.given, -1)
	h.endWait(s, slice)
	s.changed = slices.DeleteFunc(s.changed, func(o *heldSlice) bool { return o == slice })
	delete(s.slices, id)
	delete(h.owner, id)
}

// decide determines which slices of a Service wait, and passes on the others. All slices that
// waited before have vanished, except for some of s.changed.
func (h *hold) decide(n holdKey, now time.Time, b *tracker.Batch) {
	s := h.services[n]
	e, held := s.sum, !s.since.IsZero()
	all := !s.exists || e.ready == 0 || e.fresh > 0 || e.left == 0 && e.explained > 0 || e.left > 0 && held
	switch {
	case all:
		for slice := range s.waiting {
			s.review(slice)
		}
	case e.left == 0 && !held:
		s.since, s.lost = now, e.ready
		h.holdUntil(s, now.Add(h.period))
	}
	for _, slice := range s.changed {
		slice.changed = false
		switch {
		case all || !s.vanished(slice):
			h.release(s, slice, b)
			continue
		case e.left == 0:
			h.wait(s, slice, s.until)
		case !s.waiting[slice]:
			h.wait(s, slice, now.Add(min(gather, h.period)))
		}
		s.prune(slice, b)
	}
	s.changed = s.changed[:0]
	h.tidy(n, s, b)
}

// holdUntil holds a Service until a time, with the slices that wait already.
func (h *hold) holdUntil(s *heldService, until time.Time) {
	s.until = until
	for slice := range s.waiting {
		h.queue.Schedule(slice, until)
	}
}

// wait makes the new version of a slice wait until a time.
func (h *hold) wait(s *heldService, slice *heldSlice, until time.Time) {
	h.queue.Schedule(slice, until)
	if s.waiting[slice] {
		return
	}
	if s.waiting == nil {
		s.waiting, s.former = map[*heldSlice]bool{}, map[string][]*heldSlice{}
	}
	s.waiting[slice] = true
	s.remember(slice, true)
}

func (h *hold) endWait(s *heldService, slice *heldSlice) {
	h.queue.Remove(slice)
	if !s.waiting[slice] {
		return
	}
	s.remember(slice, false)
	if delete(s.waiting, slice); len(s.waiting) == 0 {
		s.waiting, s.former = nil, nil
	}
}

// release passes on a slice that waits.
func (h *hold) release(s *heldService, slice *heldSlice, b *tracker.Batch) {
	h.endWait(s, slice)
	id := slice.waiting.id
	add(b, slice.from, slice.waiting)
	object, _ := slice.waiting.object.(*discoveryv1.EndpointSlice)
	slice.object = nil
	if slices.ContainsFunc(slice.next, func(p seen) bool { return !p.ready }) {
		slice.object = object
	}
	s.countGiven(slice.next, +1)
	s.countGiven(slice.given, -1)
	slice.given, slice.waiting, slice.next = slice.next, nil, nil
	if object == nil {
		delete(s.slices, id)
		delete(h.owner, id)
	}
}

// tidy removes state that is no longer needed, and reports whether the Service is held.
func (h *hold) tidy(n holdKey, s *heldService, b *tracker.Batch) {
	if len(s.waiting) == 0 {
		s.since, s.until = time.Time{}, time.Time{}
	}
	if !s.reported.Equal(s.until) {
		s.reported = s.until
		report(b, n, s)
	}
	if len(s.slices) == 0 && !s.exists {
		delete(h.services, n)
	}
}

// wake makes expire run when the first slice is due.
func (h *hold) wake() {
	first, ok := h.queue.First()
	if !ok || !h.next.IsZero() && !first.Due().Before(h.next) {
		return
	}
	h.next = first.Due()
	if h.timer == nil {
		h.timer = time.AfterFunc(time.Until(h.next), h.expire)
		return
	}
	h.timer.Reset(time.Until(h.next))
}

// expire passes on the changes whose time is over.
func (h *hold) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = time.Time{}
	h.releaseDue(time.Now(), false)
	h.wake()
}

// releaseDue passes on the slices whose time is over, or all that wait. Each Service has a batch of
// its own, because the Tracker returns the objects of a batch together.
func (h *hold) releaseDue(now time.Time, all bool) {
	due := map[holdKey][]*heldSlice{}
	for {
		slice, ok := h.queue.First()
		if !ok || !all && slice.Due().After(now) {
			break
		}
		h.queue.Remove(slice)
		n := h.owner[slice.waiting.id]
		due[n] = append(due[n], slice)
	}
	for n, list := range due {
		b, s := &tracker.Batch{}, h.services[n]
		for _, slice := range list {
			h.release(s, slice, b)
		}
		h.tidy(n, s, b)
		h.to(b)
	}
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
		Message: fmt.Sprintf("its %d ready %s endpoints vanished at once and none was seen terminating; they stay "+
			"in use for %v, or until one is ready (kubernetes.staleEndpointTimeout)",
			s.lost, n.family, s.until.Sub(s.since)),
	}})
}
