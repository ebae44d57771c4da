package flowtable

import (
	"math/bits"
	"sync/atomic"
)

// ring holds flows of one family that give way as one kind, in the order in which they became of
// that kind: the oldest first. A handle has one for each family and each kind that has rings
// (ringOf), and pushes what it makes or changes itself. Any handle may take from it.
//
// A ring is a hint. It is lossy: when it is full, the newest entry replaces the oldest. And an
// entry is no proof: its flow may have changed or ended since, and its record may be another flow's
// by now. So an entry counts only if the record, as it is now, is live, of the ring's kind, and has
// the entry's part of the sum (still). What is done with the flow then rests on its meta alone, as
// for a flow that was found in any other way.
//
// Who writes what: entries, next, at and tail the owner alone; head anybody, by compare-and-swap.
//
//	head   moves past entries that are not what they were, or were taken. It never goes
//	       back. If the swap fails, another handle has moved it: then some entries are examined twice.
//	tail   publishes the entries below it, once per batch (Enter); pairs with the load in bounds. So
//	       the others see the last batch's entries late, which are the youngest.
//
// The owner overwrites entries without regard to head. A handle that reads one meanwhile gets a
// newer entry in the place of an older one, and judges it as any other.
type ring struct {
	head    atomic.Uint64 // position of the oldest entry, unless it was overwritten
	_       [56]byte
	tail    atomic.Uint64 // position behind the newest published entry
	next    uint64        // position behind the newest entry
	at      int           // next modulo the ring's length
	entries []atomic.Uint32
	_       [16]byte
}

// The sizes of rings, in entries of 4 bytes. Each worker's of half-open flows holds twice what the
// cap allows (ringEntries), as a flood may come to one worker alone: the oldest flow of a ring that
// has lost some would be one of the newest. The others hold the newest part of the table, all
// together: what is older is found by probes. By default rings cost 1.3 MB for each worker, and at
// most 0.4 bytes per flow of the table.
const (
	ringShare  = 32
	minEntries = 64 // of one ring
	firstRing  = ShedClosed
	numRings   = 4 // ShedClosed to ShedHalfOpen
)

// ShareRings says how many handles will make flows: each has that part of the rings. Without it
// each has rings of full size. It must be called before any handle makes a flow.
func (t *Table) ShareRings(workers int) { t.workers = uint32(min(max(workers, 1), MaxHandles)) }

// ringOf returns the kind whose ring a flow in this condition is in, or shedNever.
func ringOf(m meta) Shed {
	switch s := m.state(); {
	case s == SynSeen || s == SynRecv:
		return ShedHalfOpen
	case s >= TimeWaitClient && s <= Closed:
		return ShedClosed
	case s >= Unconfirmed && s <= LastAckBackend && m.reset():
		return ShedReset
	case s == UDPNew || s == UDPReplied:
		return ShedUnreplied
	}
	return shedNever
}

// note remembers a flow that has just become one of a kind that has rings. The handle must be
// online, and the ref of its batch: then the record is that flow's, also if it has ended since.
func (h *Handle) note(a *arena, i uint32, kind Shed) {
	r := h.rings[family(a.v6)][kind-firstRing]
	if r == nil {
		r = h.makeRing(a, kind)
	}
	r.push(i | a.flow(i).sum<<a.indexBits)
	h.pushed = true
}

// makeRing gives a handle a ring that it has not needed before: most participants are readers, and
// need none. It stays when the handle is closed, for the next owner of its place.
func (h *Handle) makeRing(a *arena, kind Shed) *ring {
	shared := &h.p.rings[family(a.v6)][kind-firstRing]
	r := shared.Load()
	if r == nil {
		n := h.t.ringEntries(a, kind)
		if kind != ShedHalfOpen { // a flood may come to one worker alone
			n = (n + h.t.workers - 1) / h.t.workers
		}
		r = &ring{entries: make([]atomic.Uint32, max(minEntries, n))}
		shared.Store(r) // publishes the ring; pairs with the load in ringAt
	}
	h.rings[family(a.v6)][kind-firstRing] = r
	return r
}

// ringEntries is how many flows of a family and a kind the rings of all workers hold: of half-open
// ones, with the other family's, twice the cap; and if the cap is no more than a quarter of the
// family's flows, twice the cap alone.
func (t *Table) ringEntries(a *arena, kind Shed) uint32 {
	if kind != ShedHalfOpen {
		return a.flows / ringShare
	}
	all := uint64(t.arenas[0].flows) + uint64(t.arenas[1].flows)
	fair := (uint64(t.halfOpen)*uint64(a.flows) + all - 1) / all
	return uint32(2 * max(fair, min(uint64(t.halfOpen), uint64(a.flows/4))))
}

// ringAt returns a participant's ring, or nil.
func (t *Table) ringAt(id, f int, kind Shed) *ring {
	return t.participants[id].rings[f][kind-firstRing].Load()
}

func (r *ring) push(entry uint32) {
	r.entries[r.at].Store(entry)
	if r.at++; r.at == len(r.entries) {
		r.at = 0
	}
	r.next++
}

// publishRings lets the others see what was pushed since the last time.
func (h *Handle) publishRings() {
	h.pushed = false
	for f := range h.rings {
		for _, r := range h.rings[f] {
			if r != nil && r.tail.Load() != r.next {
				r.tail.Store(r.next)
			}
		}
	}
}

// bounds returns the positions of the entries that a handle sees, and the head as it was loaded.
func (r *ring) bounds(own bool) (head, from, to uint64) {
	head, to = r.head.Load(), r.tail.Load()
	if own {
		to = r.next
	}
	from = head
	if n := uint64(len(r.entries)); to > n {
		from = max(from, to-n)
	}
	return head, from, to
}

func (r *ring) entry(position uint64) uint32 {
	return r.entries[position%uint64(len(r.entries))].Load()
}

// still returns the record of an entry and its meta, and whether it is what the entry says: a live
// flow of the ring's kind, with the same part of the sum.
//
// The sum is loaded after a meta that is live. That meta was stored after the sum was (activate),
// and a record that was live while this handle is online is not used again before it enters anew:
// so nobody writes the sum meanwhile.
func (a *arena) still(entry uint32, kind Shed) (i uint32, m meta, ok bool) {
	i = entry & (1<<a.indexBits - 1)
	if i == 0 {
		return 0, 0, false
	}
	f := a.flow(i)
	if m = f.load(); !m.live() || ringOf(m) != kind {
		return i, m, false
	}
	return i, m, f.sum<<a.indexBits == entry&^(1<<a.indexBits-1)
}

func indexBits(records uint32) uint { return uint(bits.Len32(records)) }
