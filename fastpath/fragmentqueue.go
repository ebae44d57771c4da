package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/fragment"
)

// fragmentQueue holds later fragments that came before their first one. All workers share the ports
// of datagrams (fragment.Table), so it does not matter which of them receives the first fragment.
//
// They wait for a second by default. Reordering within a datagram takes milliseconds; the full
// reassembly time of RFC 791 would only serve senders that never send a first fragment.
//
// Where there is no room, one that waits gives way: of the source network that holds most, if that
// is more than its share, the oldest; else the oldest of all. So one network's garbage takes no
// other's place, and garbage of many networks must fill the queue before an honest fragment's
// first one comes. A share is enough for a datagram of 64 KiB where the queue has the default
// size.
//
//	first ─► oldest ◄─► ... ◄─► youngest ◄─ last     all, by age
//	group ─► oldest ──────────► youngest             those of a source (fragment.Datagram.Source)
type fragmentQueue struct {
	slots       []heldFragment // of a fixed number; slot 0 is none
	first, last uint32
	free        uint32 // the first of those that are free, linked by next
	count       int
	more        int // frames beyond one each
	share       uint32
	groups      []fragmentGroup
	heavy       []uint32 // groups with more than a share, no more than fit

	wait    flowtable.Time
	retryAt flowtable.Time
	tried   uint64 // fragment.Table.Recorded when all were looked up
	again   bool   // of one that was looked up, the table could not tell
	id      uint32 // identification of the datagram being judged
}

type heldFragment struct {
	desc       Desc
	of         fragment.Datagram
	deadline   flowtable.Time
	link       int
	group      uint32
	prev, next uint32
	before     uint32 // in the group
	behind     uint32
}

type fragmentGroup struct{ first, last, count uint32 }

const (
	fragmentGroups = 4096
	fragmentShares = 32 // so many to a queue
	minShare       = 8
)

func newFragmentQueue(limit int, wait time.Duration) fragmentQueue {
	q := fragmentQueue{
		slots: make([]heldFragment, limit+1), groups: make([]fragmentGroup, fragmentGroups),
		share: uint32(max(limit/fragmentShares, minShare)), wait: flowtable.Time(wait),
	}
	q.heavy = make([]uint32, 0, limit/int(q.share)+1)
	for i := limit; i > 0; i-- {
		q.release(uint32(i))
	}
	return q
}

func (q *fragmentQueue) len() int   { return q.count }
func (q *fragmentQueue) limit() int { return len(q.slots) - 1 }

func (q *fragmentQueue) release(i uint32) { q.slots[i].next, q.free = q.free, i }

// add puts a fragment at the end. There must be a free slot.
func (q *fragmentQueue) add(h heldFragment) {
	i := q.free
	q.free = q.slots[i].next
	h.group = uint32(h.of.Source) % fragmentGroups
	g := &q.groups[h.group]
	h.prev, h.next, h.before, h.behind = q.last, 0, g.last, 0
	q.slots[i] = h
	q.slots[h.prev].next, q.slots[h.before].behind = i, i // of slot 0: nobody reads it
	q.last, g.last = i, i
	if q.first == 0 {
		q.first = i
	}
	if g.first == 0 {
		g.first = i
	}
	q.count++
	if g.count++; g.count == q.share+1 {
		q.heavy = append(q.heavy, h.group)
	}
}

// take removes the fragment of a slot.
func (q *fragmentQueue) take(i uint32) heldFragment {
	h := q.slots[i]
	g := &q.groups[h.group]
	q.slots[h.prev].next, q.slots[h.next].prev = h.next, h.prev
	q.slots[h.before].behind, q.slots[h.behind].before = h.behind, h.before
	if q.first == i {
		q.first = h.next
	}
	if q.last == i {
		q.last = h.prev
	}
	if g.first == i {
		g.first = h.behind
	}
	if g.last == i {
		g.last = h.before
	}
	q.count--
	if g.count--; g.count == q.share {
		q.lighter(h.group)
	}
	q.release(i)
	return h
}

// lighter removes a group from the heavy ones.
func (q *fragmentQueue) lighter(group uint32) {
	for at, other := range q.heavy {
		if other == group {
			last := len(q.heavy) - 1
			q.heavy[at] = q.heavy[last]
			q.heavy = q.heavy[:last]
			return
		}
	}
}

// victim returns the slot that gives way, or 0 if the queue is empty.
func (q *fragmentQueue) victim() uint32 {
	at, most := q.first, uint32(0)
	for _, group := range q.heavy {
		if g := &q.groups[group]; g.count > most {
			at, most = g.first, g.count
		}
	}
	return at
}

// holdFragment keeps a later fragment until its first one is known, in place of others where there
// is no room. It reports whether there was any to make.
func (w *Worker) holdFragment(d Desc, of fragment.Datagram) bool {
	q := &w.frags
	if w.n.heldMore-q.more+w.chains.Buffers(d) > q.limit() {
		return false
	}
	for !w.mayHold(d, q.count, q.limit()) {
		w.dropped(w.unhold(q.victim()).desc, stats.FragmentLimit)
	}
	q.add(heldFragment{desc: d, of: of, deadline: w.planner.Now + q.wait, link: w.b.link})
	q.more += w.chains.Buffers(d) - 1
	w.countHeld(d, 1)
	return true
}

// unhold takes a fragment out of the queue. Its chain must be what it was: what sends it may cut
// it.
func (w *Worker) unhold(i uint32) heldFragment {
	h := w.frags.take(i)
	w.frags.more -= w.chains.Buffers(h.desc) - 1
	w.countHeld(h.desc, -1)
	return h
}
