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
	// maxFirst bounds the neighbours of first requests that have never answered.
	maxFirst = 1024
	// unknownPerSecond bounds the requests to the kernel for destinations that have never answered
	// and that only packets name. The kernel keeps each for 3 s (mcast_solicit times
	// retrans_time_ms), and has room for 1024 entries of the whole node (gc_thresh3): these take at
	// most three quarters of it.
	unknownPerSecond = 256
)

// waiting has the hosts that have never answered. Hosts of first requests (backends, clients of
// established connections) have a separate list. The others are in lists by prefix: if there are
// too many, the host with the oldest request of the prefix that has the most hosts is dropped.
// Workers repeat requests for a destination in use, but not for an invented one.
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

// unknown reports whether n is waiting and only packets that any sender may send name it.
func (n *neighbour) unknown() bool { return !n.first && n.waits() }

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

// budget is the remaining part of unknownPerSecond. A group may use half of the part that the other
// groups have left: one flooded group leaves half for the others, two leave a quarter.
type budget struct {
	since time.Time
	left  int
	taken map[group]int
}

// allows reports whether a group may make another request.
func (b *budget) allows(g group, now time.Time) bool {
	if b.taken == nil || now.Sub(b.since) >= time.Second {
		b.since, b.left, b.taken = now, unknownPerSecond, make(map[group]int)
	}
	return b.taken[g] < b.left
}

// take is allows, but also counts the request.
func (b *budget) take(g group, now time.Time) bool {
	if !b.allows(g, now) {
		return false
	}
	b.taken[g]++
	b.left--
	return true
}
