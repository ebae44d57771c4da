package neigh

import "container/list"

const (
	// maxPending bounds the neighbours that were requested and have never answered: senders with
	// spoofed addresses can make packets for any destination on a link.
	maxPending = 1024
	// displacementsPerTick bounds how many of them give way to others in one second,
	// and with it how many questions a flood of made-up destinations makes the kernel ask.
	displacementsPerTick = 4096
)

// waiting holds the hosts that have never answered, the one that was asked for
// longest ago first. When it is full that one gives way: a destination that somebody
// sends to is asked for again and again, a made-up one is not.
//
// Invariant: no hop and no route leads to a host in it, so it can be dropped without
// a new View.
type waiting struct {
	list      list.List // of *neighbour
	displaced int       // since the last tick
}

// waits says whether n belongs among the waiting.
func (n *neighbour) waits() bool { return n.host && !n.ready && !n.gateway && !n.hosted }

// full says whether a new host must be refused: the places are taken, and enough
// have given way in this second.
func (w *waiting) full() bool {
	return w.list.Len() >= maxPending && w.displaced >= displacementsPerTick
}

// asked puts n, which somebody just asked for, last. It returns who has to give way.
func (w *waiting) asked(n *neighbour) (oldest *neighbour) {
	switch {
	case !n.waits():
		w.leave(n)
		return nil
	case n.place != nil:
		w.list.MoveToBack(n.place)
		return nil
	}
	if w.list.Len() >= maxPending {
		oldest = w.list.Front().Value.(*neighbour)
		w.leave(oldest)
		w.displaced++
	}
	n.place = w.list.PushBack(n)
	return oldest
}

// leave takes n out: it has answered, is a gateway, or is forgotten.
func (w *waiting) leave(n *neighbour) {
	if n.place != nil {
		w.list.Remove(n.place)
		n.place = nil
	}
}

// forget stops tracking n.
func (m *Mirror) forget(n *neighbour) {
	m.waiting.leave(n)
	delete(m.tracked, n.key)
}
