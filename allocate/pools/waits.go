package pools

import (
	"container/list"
	"net/netip"
	"slices"
)

// Services that lack an address wait in queues, one for each condition. A change of an address
// wakes the first Service of the queues that the change concerns. When that Service has been
// processed and something is left, the next one is woken. So the work per change does not depend on
// how many Services wait.

// condition is an event that a Service waits for: one of pool, address and sharing is set.
type condition struct {
	pool    string // the pool has an unclaimed address of each family in v4, v6
	v4, v6  bool
	address netip.Addr // the requested address is free
	sharing string     // an address with this sharing key has changed
}

// waiter is a waiting Service.
type waiter struct {
	key   string
	in    map[condition]*list.Element
	woken []condition // queues that woke it; empty after it was processed
}

// queue has the waiters for a condition, oldest first. next is the one to wake next, nil after the
// last. out is how many were woken and not processed yet.
type queue struct {
	waiters list.List
	next    *list.Element
	out     int
	again   bool // another change came after the first waiter was woken
}

type waits struct {
	waiters map[string]*waiter
	queues  map[condition]*queue
	pools   map[condition]*queue // subset of queues: conditions with a pool
	changed []netip.Addr
	keys    []string // woken, not returned by Woken yet
}

// FollowWaiting makes Woken return Services that may now get an address that they lacked.
func (a *Allocator) FollowWaiting() {
	a.waits = &waits{waiters: map[string]*waiter{}, queues: map[condition]*queue{}, pools: map[condition]*queue{}}
}

func (w *waits) note(changed []netip.Addr) {
	if w != nil {
		w.changed = append(w.changed, changed...)
	}
}

// Woken returns the Services that must be processed again (Converge, Forget or Pass) because of
// changes since the last call.
func (a *Allocator) Woken() []string {
	w := a.waits
	changed := w.changed
	w.changed = nil
	slices.SortFunc(changed, netip.Addr.Compare)
	for _, x := range slices.Compact(changed) {
		a.event(x)
	}
	keys := w.keys
	w.keys = nil
	return keys
}

// event wakes waiters that a change of an address concerns.
func (a *Allocator) event(x netip.Addr) {
	w := a.waits
	at := a.at[x]
	if at != nil {
		if c := at.given(); c != nil && c.sharing.Key != "" {
			w.begin(w.queues[condition{sharing: c.sharing.Key}])
		}
		for _, c := range at.claims {
			if c.reserved && w.waiters[c.allowedKey] != nil {
				w.keys = append(w.keys, c.allowedKey)
			}
		}
		return
	}
	w.begin(w.queues[condition{address: x}])
	for c, q := range w.pools {
		p := a.pool(c.pool)
		if p != nil && (c.v4 && x.Is4() || c.v6 && x.Is6()) && p.Contains(x) && a.possible(c) {
			w.begin(q)
		}
	}
}

// begin wakes the next waiter of a queue; the first one if no waiter of it is being processed.
func (w *waits) begin(q *queue) {
	if q == nil {
		return
	}
	if q.out == 0 {
		q.next = q.waiters.Front()
	}
	if q.next == nil {
		q.again = true
		return
	}
	w.wake(q)
}

func (w *waits) wake(q *queue) {
	of, _ := q.next.Value.(entry)
	q.next = q.next.Next()
	q.out++
	if len(of.woken) == 0 {
		w.keys = append(w.keys, of.key)
	}
	of.woken = append(of.woken, of.condition)
}

// entry is an element of a queue's list.
type entry struct {
	*waiter
	condition
}

// Pass skips a woken Service that could not be processed: the next waiter is woken in its place.
func (a *Allocator) Pass(key string) {
	if a.waits != nil && a.waits.waiters[key] != nil {
		a.passOn(a.waits.waiters[key])
	}
}

// waitFor records the conditions that a processed Service waits for; none: it does not wait.
func (a *Allocator) waitFor(key string, wanted []condition) {
	w := a.waits
	if w == nil {
		return
	}
	of := w.waiters[key]
	if of == nil {
		if len(wanted) == 0 {
			return
		}
		of = &waiter{key: key, in: map[condition]*list.Element{}}
		w.waiters[key] = of
	}
	for c, element := range of.in {
		if !slices.Contains(wanted, c) {
			q := w.queues[c]
			if q.next == element {
				q.next = element.Next()
			}
			q.waiters.Remove(element)
			delete(of.in, c)
			w.drop(c)
		}
	}
	for _, c := range wanted {
		if of.in[c] != nil {
			continue
		}
		q := w.queues[c]
		if q == nil {
			q = &queue{}
			w.queues[c] = q
			if c.pool != "" {
				w.pools[c] = q
			}
		}
		of.in[c] = q.waiters.PushBack(entry{of, c})
	}
	a.passOn(of)
	if len(of.in) == 0 {
		delete(w.waiters, key)
	}
}

// passOn wakes the waiters behind a processed one, if something is left for them.
func (a *Allocator) passOn(of *waiter) {
	w := a.waits
	woken := of.woken
	of.woken = nil
	for _, c := range woken {
		q := w.queues[c]
		q.out--
		if q.next == nil && q.out == 0 && q.again {
			q.again, q.next = false, q.waiters.Front()
		}
		if q.next != nil && a.possible(c) {
			w.wake(q)
		}
	}
	for _, c := range woken {
		w.drop(c)
	}
}

// drop deletes an empty queue.
func (w *waits) drop(c condition) {
	if q := w.queues[c]; q != nil && q.waiters.Len() == 0 && q.out == 0 {
		delete(w.queues, c)
		delete(w.pools, c)
	}
}

// possible reports whether the condition of a queue holds.
func (a *Allocator) possible(c condition) bool {
	switch {
	case c.sharing != "":
		return len(a.groups[c.sharing]) > 0
	case c.address.IsValid():
		return a.at[c.address] == nil
	}
	p := a.pool(c.pool)
	return p != nil && !(c.v4 && !a.hasFree(p, false)) && !(c.v6 && !a.hasFree(p, true))
}

// hasFree reports whether a pool has an unclaimed address of a family.
func (a *Allocator) hasFree(p *Pool, v6 bool) bool {
	for _, i := range p.ranges {
		if i.From().Is6() == v6 {
			if _, there := a.unclaimed(p, i.From(), i.To()); there {
				return true
			}
		}
	}
	return false
}

// conditions returns the conditions that a Service waits for, given the result of Converge.
func (a *Allocator) conditions(r *Request, result *Result) (list []condition) {
	if !result.Lacks {
		return nil
	}
	switch why := result.Refusal; {
	case why == nil && len(result.Addresses) > 0 && a.claims[r.Key] != nil && !a.presumes(r.Key):
		v4, _ := families(result.Addresses)
		for _, p := range a.extending(r) {
			if p.hasFamily(v4) {
				list = append(list, condition{pool: p.Name, v4: !v4, v6: v4})
			}
		}
	case why == nil:
	case why.Reason == PoolEmpty:
		list = a.conditionsOfPools(r)
	case why.Reason == AddressTaken || why.Reason == PortTaken || why.Reason == BadSharingKey:
		i := slices.IndexFunc(r.Addresses, func(x netip.Addr) bool { return a.free(r, x, false) != nil })
		if i >= 0 {
			list = append(list, condition{address: r.Addresses[i]})
		}
	}
	if len(list) > 0 && r.Sharing.Key != "" {
		list = append(list, condition{sharing: r.Sharing.Key})
	}
	return list
}

// conditionsOfPools returns the conditions under which the pools that admit a Service could serve
// it.
func (a *Allocator) conditionsOfPools(r *Request) (list []condition) {
	tiers, _ := a.tiers(r)
	// The Service may lack either family: the other one can come from a shared or reserved address.
	apart := r.oneFamilyEnough() || r.Sharing.Key != "" || len(a.excepts[r.Key]) > 0
	for _, p := range slices.Concat(tiers...) {
		v4, v6 := r.V4 && p.hasFamily(false), r.V6 && p.hasFamily(true)
		switch {
		case v4 && v6 && apart:
			list = append(list, condition{pool: p.Name, v4: true}, condition{pool: p.Name, v6: true})
		case r.dual() && !r.oneFamilyEnough() && !(v4 && v6): // never
		case v4 || v6:
			list = append(list, condition{pool: p.Name, v4: v4, v6: v6})
		}
	}
	return list
}

func (p *Pool) hasFamily(v6 bool) bool {
	for _, i := range p.ranges {
		if i.From().Is6() == v6 {
			return true
		}
	}
	return false
}
