package neigh

import (
	"container/list"
	"net/netip"
	"time"
)

const (
	// maxPending bounds the neighbours that were requested and have never answered: senders with
	// spoofed addresses can make packets for any destination on a link.
	maxPending = 1024
	// maxFirst bounds those that were requested first, and have never answered.
	maxFirst = 1024
	// unknownPerSecond bounds the requests to the kernel for destinations that have never answered
	// and that nobody but the sender of a packet names. The kernel keeps each for 3 s
	// (mcast_solicit times retrans_time_ms), and has room for 1024 (gc_thresh3) that are the whole
	// node's: these take three quarters of it at most.
	unknownPerSecond = 256
)

// waiting holds the hosts that have never answered. Those of first requests, to backends and of
// connections that stand, have places of their own. The others are kept by prefix: if there is no
// place left, the one with the oldest request of the prefix that has most gives way. Workers repeat
// requests for a destination in use, but not those for an invented one.
//
// Invariant: no hop and no route leads to a host in it, so it can be dropped without
// a new View.
type waiting struct {
	first    list.List // of *neighbour, by their last request, the oldest first
	unknown  map[group]*list.List
	unknowns int // in all groups
}

// group is the unknown hosts that share places and requests: those of a prefix on a device.
type group struct {
	dev    int32
	prefix netip.Prefix
}

// groupOf returns the group of a neighbour. Invented addresses of a link are as many as its prefix
// has; by /24 and /64 a part of a larger one does not take all places.
func groupOf(k neighKey) group {
	a, bits := k.addr.Netip(), 64
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // fails for other lengths only
	return group{k.dev, p}
}

// waits reports whether n belongs in waiting.
func (n *neighbour) waits() bool { return n.host && !n.ready && !n.gateway && !n.hosted }

// unknown reports whether nothing but packets that anybody may send leads to n.
func (n *neighbour) unknown() bool { return !n.first && n.waits() }

func (w *waiting) len() int { return w.first.Len() + w.unknowns }

// requested moves n to the end of its list after a request. It returns the host that n replaces;
// nil if it replaces none.
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

// largest returns the group that has most. It is called for requests that the budget allows, and so
// seldom enough to look at all.
func (w *waiting) largest() (most *list.List) {
	for _, l := range w.unknown {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	return most
}

// remove removes n, which has answered, is a gateway, is forgotten or requested again.
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

// budget is what remains of unknownPerSecond. A group may take half of what the others have left:
// one that is flooded leaves them half, two a quarter.
type budget struct {
	since time.Time
	left  int
	taken map[group]int
}

// allows reports whether a group may request one more.
func (b *budget) allows(g group, now time.Time) bool {
	if b.taken == nil || now.Sub(b.since) >= time.Second {
		b.since, b.left, b.taken = now, unknownPerSecond, make(map[group]int)
	}
	return b.taken[g] < b.left
}

// take is allows, and counts the request.
func (b *budget) take(g group, now time.Time) bool {
	if !b.allows(g, now) {
		return false
	}
	b.taken[g]++
	b.left--
	return true
}
