package neigh

import (
	"container/list"
	"net/netip"
	"time"
)

const (
	// maxPending bounds the requested neighbours that have never answered: senders with spoofed
	// addresses can cause packets to any destination on a link.
	maxPending = 1024
	// maxFirst bounds the neighbours of first requests that have never answered: as many as a /20
	// has.
	maxFirst = 4096
)

// Bounds of the addresses that the kernel is resolving. Until that ends it cannot remove their
// entries. With 1024 entries (gc_thresh3) it refuses every new neighbour of the node, for any
// program. All three bounds together take three quarters.
const (
	// mostUnknown is for destinations that only packets name.
	mostUnknown = 384
	// mostFirst is for first requests: the author of an EndpointSlice can invent endpoints.
	mostFirst = 192
	// MostChecked is for health checks, whose requests do not pass the mirror (Unresolved).
	MostChecked = 192

	// unansweredFor is how long a request counts: the kernel tries for 3 s (mcast_solicit times
	// retrans_time_ms), and its timers are late.
	unansweredFor = 3500 * time.Millisecond
)

// waiting has the hosts that have never answered. Hosts of first requests (backends, clients of
// established connections) have a separate list. The others are in lists by prefix: if there are
// too many, the host with the oldest request of the prefix that has the most hosts is dropped.
// Workers repeat requests for a destination in use.
//
// Invariant: no hop and no route leads to a waiting host, so it can be dropped without a new View.
type waiting struct {
	first    list.List // of *neighbour, least recently requested first
	unknown  map[group]*list.List
	unknowns int // in all groups
}

// group names a set of unknown hosts that share places and requests: the hosts of a prefix on a
// device.
type group struct {
	dev    int32
	prefix netip.Prefix
}

// groupOf returns the group of a neighbour, by /24 or /64. A flood of invented addresses in one
// part of a link's larger prefix so does not take the places of the other parts.
func groupOf(k neighKey) group {
	a, bits := k.addr.Netip(), 64
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // cannot fail: the length fits the family
	return group{k.dev, p}
}

// waits reports whether n belongs in waiting.
func (n *neighbour) waits() bool { return n.host && !n.ready && !n.gateway && !n.hosted }

func (w *waiting) len() int { return w.first.Len() + w.unknowns }

// requested moves n to the end of its list after a request. It returns the host that n replaces, or
// nil.
func (w *waiting) requested(n *neighbour) (oldest *neighbour) {
	w.remove(n)
	if !n.waits() {
		return nil
	}
	in := &w.first
	if n.first {
		if in.Len() >= maxFirst {
			oldest = in.Front().Value.(*neighbour)
		}
	} else if w.unknowns >= maxPending {
		oldest = w.largest().Front().Value.(*neighbour)
	}
	if oldest != nil {
		w.remove(oldest)
	}
	if !n.first {
		in = w.unknown[groupOf(n.key)]
		if in == nil {
			in = list.New()
			if w.unknown == nil {
				w.unknown = make(map[group]*list.List)
			}
			w.unknown[groupOf(n.key)] = in
		}
		w.unknowns++
	}
	n.list, n.place = in, in.PushBack(n)
	return oldest
}

// largest returns the list of the group with the most hosts. It may look at all groups because it
// is called only for requests within the budget.
func (w *waiting) largest() (most *list.List) {
	for _, l := range w.unknown {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	return most
}

// remove removes n from its list: it has answered, is a gateway, is forgotten or requested again.
func (w *waiting) remove(n *neighbour) {
	if n.place == nil {
		return
	}
	n.list.Remove(n.place)
	if n.list != &w.first {
		w.unknowns--
		if n.list.Len() == 0 {
			delete(w.unknown, groupOf(n.key))
		}
	}
	n.list, n.place = nil, nil
}

// forget stops tracking n.
func (m *Mirror) forget(n *neighbour) {
	m.waiting.remove(n)
	delete(m.tracked, n.key)
}

// budget bounds the requests to the kernel that have no answer yet. New requests (for hosts that
// were not asked for before) may take three quarters of it, repeated ones half. So a new host does
// not wait until silent hosts are forgotten, and a host that missed its first request is asked for
// again while new ones arrive.
type budget struct {
	all, new, repeated part
	charges            []*charge // oldest first
}

// part bounds the pending requests of a kind, or all. A group may take half of the room that other
// groups leave: one flooded group leaves half for the others, two leave a quarter.
type part struct {
	most    int
	pending int
	taken   map[group]int
}

// charge is a request that counts against a budget until its end.
type charge struct {
	of    [2]*part // all, and its kind
	group group
	at    time.Time
	ended bool
}

func newBudget(most int) *budget {
	bounded := func(most int) part { return part{most: most, taken: make(map[group]int)} }
	return &budget{all: bounded(most), new: bounded(most - most/4), repeated: bounded(most / 2)}
}

// parts returns the parts that a request counts against.
func (b *budget) parts(repeated bool) [2]*part {
	if repeated {
		return [...]*part{&b.all, &b.repeated}
	}
	return [...]*part{&b.all, &b.new}
}

func (p *part) allows(g group) bool { return p.taken[g] < p.most-p.pending }

// allows reports whether a group may make another request.
func (b *budget) allows(g group, repeated bool, now time.Time) bool {
	for len(b.charges) > 0 && now.Sub(b.charges[0].at) >= unansweredFor {
		b.charges[0].end()
		b.charges = b.charges[1:]
	}
	of := b.parts(repeated)
	return of[0].allows(g) && of[1].allows(g)
}

// take is allows, but also counts the request. It returns nil if there is no room.
func (b *budget) take(g group, repeated bool, now time.Time) *charge {
	if !b.allows(g, repeated, now) {
		return nil
	}
	c := &charge{of: b.parts(repeated), group: g, at: now}
	b.charges = append(b.charges, c)
	for _, p := range c.of {
		p.taken[g]++
		p.pending++
	}
	return c
}

// end ends a charge: the kernel no longer asks. It reports whether it was pending. c may be nil.
func (c *charge) end() bool {
	if c == nil || c.ended {
		return false
	}
	c.ended = true
	for _, p := range c.of {
		p.pending--
		if p.taken[c.group]--; p.taken[c.group] == 0 {
			delete(p.taken, c.group)
		}
	}
	return true
}

// budgetOf returns the budget of first requests, or of others.
func (m *Mirror) budgetOf(first bool) *budget {
	if first {
		return m.first
	}
	return m.unknown
}

// mayWait reports whether a host that has never answered may be tracked for a request: it has a
// place of its own, or may take that of another one because the kernel can be asked now.
func (m *Mirror) mayWait(key neighKey, first bool) bool {
	return first && m.waiting.first.Len() < maxFirst || m.budgetOf(first).allows(groupOf(key), false, m.now())
}

// requestNext makes the request that waited longest among first requests with room in the budget.
func (m *Mirror) requestNext() {
	for e := m.waiting.first.Front(); e != nil; e = e.Next() {
		if m.use(e.Value.(*neighbour)) {
			return
		}
	}
}
