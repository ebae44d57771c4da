package k8s

import (
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control"
)

// hold stands between the stores and the Tracker. With a time it keeps the endpoints of
// a Service for so long that vanish all at once without having been seen terminating:
// what a restarted or confused controller does, and no deployment. The newest versions of
// the slices wait here meanwhile, and the Tracker goes on with the last.
//
// A Service is held when every endpoint that was ready is in none of its slices any more.
// Half would not do: with some left there is a better thing to do than to send to those
// that may be dead. Slices are written one by one, so a slice that loses all its ready
// endpoints while others still have some waits for gather, whether those follow.
//
// Nothing waits that the API server explains or that people want:
//   - an endpoint that is there and not ready, or terminating: the news goes on at once;
//   - a new ready endpoint: the Service has other pods now, and all that waits goes on;
//   - the Service itself deleted: all that waits goes on;
//   - an endpoint that moved to another slice.
type hold struct {
	to func(*control.Batch)

	mu       sync.Mutex
	period   time.Duration // 0 holds nothing, and nothing is remembered
	services map[serviceName]*heldService
	owner    map[control.ObjectID]serviceName // of slices
	waiting  map[serviceName]*heldService     // those of which a slice waits
	timer    *time.Timer
	next     time.Time // when it runs out; zero if it does not run
}

// gather is how long a slice without its endpoints waits for the others of its Service.
const gather = time.Second

type serviceName struct{ namespace, name string }

// heldService is a Service as far as endpoints can vanish from it.
type heldService struct {
	exists bool
	slices map[control.ObjectID]*heldSlice
	until  time.Time // all is held until then; zero if not
	said   time.Time // the until of the Problem that the Tracker has
	lost   int       // ready endpoints when that began
}

// heldSlice is an EndpointSlice as the Tracker has it, and the version that waits.
type heldSlice struct {
	from    control.Source
	gone    bool // nothing is left to remember
	given   []seen
	waiting *change // nil if the Tracker has the newest
	next    []seen  // of waiting
	until   time.Time
}

func newHold(to func(*control.Batch), period time.Duration) *hold {
	return &hold{
		to: to, period: period, services: map[serviceName]*heldService{},
		owner: map[control.ObjectID]serviceName{}, waiting: map[serviceName]*heldService{},
	}
}

// setPeriod changes the time for what vanishes from now on. With 0 all that waits goes
// on at once. It says whether everything must be listed anew to be remembered.
func (h *hold) setPeriod(d time.Duration) (relist bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	relist = h.period == 0 && d > 0
	h.period = d
	if d > 0 {
		return relist
	}
	b := &control.Batch{}
	for n, s := range h.waiting {
		s.release(b, everything)
		h.tidy(n, s, b)
	}
	clear(h.services)
	clear(h.owner)
	h.to(b)
	return false
}

// apply takes changes in, and hands on those that need not wait, all at once.
func (h *hold) apply(from control.Source, changes []change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, touched := &control.Batch{}, map[serviceName]bool{}
	for i := range changes {
		c := &changes[i]
		if h.period > 0 && h.keep(from, c, touched) {
			continue
		}
		add(b, from, c)
	}
	now := time.Now()
	for n := range touched {
		h.settle(n, now, b)
	}
	h.to(b)
}

// keep notes what a change means for its Service. It returns true where the change is
// left to settle.
func (h *hold) keep(from control.Source, c *change, touched map[serviceName]bool) bool {
	switch c.id.Kind {
	case control.KindService:
		n := serviceName{c.id.Namespace, c.id.Name}
		h.service(n).exists = c.object != nil
		touched[n] = true
	case control.KindEndpointSlice:
		return h.keepSlice(from, c, touched)
	}
	return false
}

func (h *hold) service(n serviceName) *heldService {
	s := h.services[n]
	if s == nil {
		s = &heldService{slices: map[control.ObjectID]*heldSlice{}}
		h.services[n] = s
	}
	return s
}

func (h *hold) keepSlice(from control.Source, c *change, touched map[serviceName]bool) bool {
	n, owned := h.owner[c.id]
	object, _ := c.object.(*discoveryv1.EndpointSlice)
	if object != nil {
		now := serviceName{object.Namespace, object.Labels[discoveryv1.LabelServiceName]}
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
		s.slices[c.id] = slice
		h.owner[c.id] = n
	}
	kept := *c
	slice.waiting, slice.next = &kept, endpointsOf(object)
	touched[n] = true
	return true
}

// settle decides which slices of a Service wait, and hands on the others.
func (h *hold) settle(n serviceName, now time.Time, b *control.Batch) {
	s := h.services[n]
	e := s.compare()
	switch {
	case !s.exists || e.ready == 0 || e.fresh || e.left == 0 && e.explained:
		s.release(b, everything)
	case e.left == 0:
		if s.until.IsZero() {
			s.until, s.lost = now.Add(h.period), e.ready
		}
		s.wait(s.until)
	default:
		for _, slice := range s.slices {
			if slice.waiting != nil && slice.until.IsZero() && e.vanished(slice) {
				slice.until = now.Add(min(gather, h.period))
			}
		}
		s.release(b, func(slice *heldSlice) bool { return !e.vanished(slice) || !now.Before(slice.until) })
	}
	h.tidy(n, s, b)
}

// wait lets all new versions wait until one moment.
func (s *heldService) wait(until time.Time) {
	for _, slice := range s.slices {
		if slice.waiting != nil {
			slice.until = until
		}
	}
}

func everything(*heldSlice) bool { return true }

// release hands on the slices that which selects of those that wait.
func (s *heldService) release(b *control.Batch, which func(*heldSlice) bool) {
	for _, slice := range s.slices {
		if slice.waiting == nil || !which(slice) {
			continue
		}
		add(b, slice.from, slice.waiting)
		slice.gone = slice.waiting.object == nil
		slice.given, slice.waiting, slice.next, slice.until = slice.next, nil, nil, time.Time{}
	}
}

// tidy forgets what is over, says what is held, and sets the timer.
func (h *hold) tidy(n serviceName, s *heldService, b *control.Batch) {
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
		s.until = time.Time{}
		delete(h.waiting, n)
	} else {
		h.waiting[n] = s
		h.wake(next)
	}
	if !s.said.Equal(s.until) {
		s.said = s.until
		report(b, n, s)
	}
	if len(s.slices) == 0 && !s.exists {
		delete(h.services, n)
	}
}

// wake sees to it that expire runs at a time, or before.
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

// expire hands on what has waited long enough.
func (h *hold) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = time.Time{}
	b, now := &control.Batch{}, time.Now()
	for n, s := range h.waiting {
		s.release(b, func(slice *heldSlice) bool { return !now.Before(slice.until) })
		h.tidy(n, s, b)
	}
	h.to(b)
}

// stop ends the timer. What waits is dropped.
func (h *hold) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
}

// report says that a Service is held, or is no more.
func report(b *control.Batch, n serviceName, s *heldService) {
	place := control.Source{Kind: Kind, Path: "hold/" + n.namespace + "/" + n.name}
	if s.until.IsZero() {
		b.Report(place, nil)
		return
	}
	b.Report(place, []control.Problem{{
		Source: place, Severity: control.Warning, Reason: control.ReasonEndpointsHeld,
		Object: control.ObjectID{Kind: control.KindService, Namespace: n.namespace, Name: n.name},
		Message: fmt.Sprintf("its %d ready endpoints vanished at once and none was seen terminating; they are served until %s (kubernetes.hold)",
			s.lost, s.until.UTC().Format(time.RFC3339)),
	}})
}
