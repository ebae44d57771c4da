package fastpath

import (
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/fragment"
)

// fragmentQueue holds later fragments that arrived before their first one. All workers share the
// ports of datagrams (fragment.Table), so any of them may receive the first fragment.
//
// They wait for one second by default. Reordering within a datagram takes milliseconds; the full
// reassembly time of RFC 791 would only help senders that never send a first fragment.
//
// If there is no room, a held fragment is evicted: the oldest of the source network that holds the
// most, if that is more than its share, else the oldest of all. So garbage from one network does
// not evict the fragments of others, and garbage from many networks evicts a valid fragment only if
// it fills the queue before the first fragment arrives. With the default queue size a share is
// enough for a datagram of 64 KiB.
//
//	first ─► oldest ◄─► ... ◄─► youngest ◄─ last     all, by age
//	group ─► oldest ──────────► youngest             of one source network (fragment.Datagram.Source)
type fragmentQueue struct {
	slots       []heldFragment // fixed length; index 0 means none
	first, last uint32
	free        uint32 // the first free slot; free slots are linked by next
	count       int
	more        int // frames of held fragments beyond one each
	share       uint32
	groups      []fragmentGroup
	heavy       []uint32 // groups that hold more than a share; capacity is fixed

	wait    flowtable.Time
	retryAt flowtable.Time
	tried   uint64 // fragment.Table.Recorded at the last lookup of all fragments
	again   bool   // a lookup returned Busy, so all must be looked up again
}

type heldFragment struct {
	desc       Desc
	of         fragment.Datagram
	deadline   flowtable.Time
	link       int
	group      uint32
	prev, next uint32
	before     uint32 // the previous and next one of the group
	behind     uint32
}

type fragmentGroup struct{ first, last, count uint32 }

const (
	fragmentGroups = 4096
	fragmentShares = 32 // shares in a queue
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
	q.slots[h.prev].next, q.slots[h.before].behind = i, i // index 0: never read
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

// lighter removes a group from heavy.
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

// victim returns the slot of the fragment that is evicted next, or 0 if the queue is empty.
func (q *fragmentQueue) victim() uint32 {
	at, most := q.first, uint32(0)
	for _, group := range q.heavy {
		if g := &q.groups[group]; g.count > most {
			at, most = g.first, g.count
		}
	}
	return at
}
