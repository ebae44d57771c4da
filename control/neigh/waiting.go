package neigh

import "container/list"

const (
	// maxPending bounds the neighbours that were requested and have never answered: senders with
	// spoofed addresses can make packets for any destination on a link.
	maxPending = 1024
	// displacementsPerTick bounds how many of them are replaced in one second, and so how many
	// requests to the kernel a flood of invented destinations causes.
	displacementsPerTick = 4096
)

// waiting holds the hosts that have never answered, by their last request, the oldest first. If
// it is full a new host replaces the oldest: workers repeat requests for a destination in use, but
// not those for an invented one.
//
// Invariant: no hop and no route leads to a host in it, so it can be dropped without
// a new View.
type waiting struct {
	list      list.List // of *neighbour
	displaced int       // since the last tick
}

// waits reports whether n belongs in waiting.
func (n *neighbour) waits() bool { return n.host && !n.ready && !n.gateway && !n.hosted }

// full reports whether a new host must be refused: the list is full, and enough hosts have been
// replaced in this second.
func (w *waiting) full() bool {
	return w.list.Len() >= maxPending && w.displaced >= displacementsPerTick
}

// requested moves n to the end of the list after a request. It returns the host that n replaces;
// nil if it replaces none.
func (w *waiting) requested(n *neighbour) (oldest *neighbour) {
	switch {
	case !n.waits():
		w.remove(n)
		return nil
	case n.place != nil:
		w.list.MoveToBack(n.place)
		return nil
	}
	if w.list.Len() >= maxPending {
		oldest = w.list.Front().Value.(*neighbour)
		w.remove(oldest)
		w.displaced++
	}
	n.place = w.list.PushBack(n)
	return oldest
}

// remove removes n, which has answered, is a gateway, or is forgotten.
func (w *waiting) remove(n *neighbour) {
	if n.place != nil {
		w.list.Remove(n.place)
		n.place = nil
	}
}

// forget stops tracking n.
func (m *Mirror) forget(n *neighbour) {
	m.waiting.remove(n)
	delete(m.tracked, n.key)
}
