package flowtable

import (
	"math/bits"
	"sync/atomic"

	"sluice.dev/sluice/flowtable/conn"
)

// ring holds flows of one family and one kind of Shed. A handle has one for each family and each
// kind, and any handle may take flows from it. The entries and their order, by kind:
//
//	closed, reset, one-sided, unreplied, flows that the handle makes or changes (ringOf):
//	half-open                            the oldest first
//	settled, unconfirmed, idle           flows that the sweep passes in a nearly full table
//	                                     (evict_survey.go): in the table's order. Settled flows are
//	                                     half-open, not flows that became established.
//
// Flows of the first five kinds that a dead process left are in the table's own rings
// (Table.leftover).
//
// A ring is a hint. It is lossy: when it is full, the newest entry replaces the oldest. And an
// entry is no proof: its flow may have changed or ended since, and its record may now belong to
// another flow. So an entry counts only if the record is live now, is of the ring's kind, and has
// the entry's part of the sum (still). After that the flow's meta alone decides, as for a flow that
// was found in any other way.
//
// Writers: only the owner writes entries, next, at and tail; any handle writes head, by
// compare-and-swap.
//
//	head   moves past entries that no longer count or were taken. It never moves
//	       back. If the swap fails, another handle has moved it: then some entries are
//	       examined twice.
//	tail   publishes the entries below it, once per batch (Enter); pairs with the load in bounds.
//	       So other handles see the entries of the last batch, which are the youngest, late.
//
// The owner overwrites entries without regard to head. A handle that reads an entry meanwhile gets
// a newer entry in the place of an older one, and checks it like any other.
type ring struct {
	head    atomic.Uint64 // position of the oldest entry, unless it was overwritten
	_       [56]byte
	tail    atomic.Uint64 // position after the newest published entry
	next    uint64        // position after the newest entry
	at      int           // next modulo the ring's length
	entries []atomic.Uint32
	_       [16]byte
}

// The sizes of rings, in entries of 4 bytes. Each worker's ring of half-open flows holds twice as
// many flows as the cap allows (ringEntries), because a flood may come to one worker alone: if the
// ring lost entries, its oldest flow would be one of the newest. The rings of other kinds together
// hold the newest part of the table; probes find older flows. By default rings cost 1.3 MB for each
// worker, and at most 0.8 bytes per flow of the table.
const (
	ringShare  = 32
	minEntries = 64 // of one ring

	// A kind's ring has the number kind - firstRing. The rings of the kinds that are noted when a
	// flow is made or changed come first.
	firstRing   = ShedClosed
	madeRings   = 5 // ShedClosed to ShedHalfOpen
	settledRing = int(NumSheds - firstRing)
	numRings    = settledRing + 1
)

// ShareRings sets how many handles will make flows: each gets an equal share of the ring memory.
// Without this call each handle has rings of full size. It must be called before any handle makes a
// flow.
func (t *Table) ShareRings(workers int) { t.workers = uint32(min(max(workers, 1), MaxHandles)) }

// ringOf returns the kind in whose ring a flow with this meta is noted, or shedNever.
func ringOf(m conn.Meta) Shed {
	switch s := m.State(); {
	case s == SynSeen || s == SynRecv:
		return ShedHalfOpen
	case s >= TimeWaitClient && s <= Closed:
		return ShedClosed
	case m.OneSided():
		return ShedOneSided
	case s >= Unconfirmed && s <= LastAckBackend && m.Reset():
		return ShedReset
	case s == UDPNew || s == UDPReplied:
		return ShedUnreplied
	}
	return shedNever
}

// note pushes a flow that has just become of the given kind to that kind's ring. The handle must be
// online, and the ref must be from its current batch: then the record still belongs to that flow,
// even if the flow has ended since.
func (h *Handle) note(a *arena, i uint32, kind Shed) {
	h.pushTo(int(kind-firstRing), a, i)
}

// pushTo pushes a flow to one of the handle's rings.
func (h *Handle) pushTo(n int, a *arena, i uint32) {
	r := h.rings[family(a.v6)][n]
	if r == nil {
		r = h.makeRing(a, n)
	}
	r.push(i | a.flow(i).sum<<a.indexBits)
	h.pushed = true
}

// MakeRings allocates and touches the memory of all rings of a handle that will make flows.
// Otherwise the first flow of each kind would wait for it, for milliseconds if the half-open cap is
// large. A reader needs no rings.
func (h *Handle) MakeRings() {
	for f := range h.t.arenas {
		a := &h.t.arenas[f]
		if a.flows == 0 {
			continue
		}
		for n, r := range h.rings[f] {
			if r == nil {
				r = h.makeRing(a, n)
			}
			if r.next == 0 {
				for i := range r.entries {
					r.entries[i].Store(0)
				}
			}
		}
	}
}

// makeRing returns the handle's ring of a kind, and allocates it if the handle's place has none.
// The ring remains when the handle is closed, for the next owner of the place.
func (h *Handle) makeRing(a *arena, n int) *ring {
	shared := &h.p.rings[family(a.v6)][n]
	r := shared.Load()
	if r == nil {
		kind := firstRing + Shed(n)
		entries := h.t.ringEntries(a, kind)
		if kind != ShedHalfOpen { // a flood may come to one worker alone
			entries = (entries + h.t.workers - 1) / h.t.workers
		}
		r = newRing(max(minEntries, entries))
		shared.Store(r) // publishes the ring; pairs with the load in ringAt
	}
	h.rings[family(a.v6)][n] = r
	return r
}

// ringEntries returns how many flows of a family and a kind the rings of all workers hold. The
// rings of half-open flows of both families together hold twice the cap; if the cap is at most a
// quarter of the family's flows, the family's ring alone holds twice the cap.
func (t *Table) ringEntries(a *arena, kind Shed) uint32 {
	if kind != ShedHalfOpen {
		return a.flows / ringShare
	}
	all := uint64(t.arenas[0].flows) + uint64(t.arenas[1].flows)
	fair := (uint64(t.halfOpen)*uint64(a.flows) + all - 1) / all
	return uint32(2 * max(fair, min(uint64(t.halfOpen), uint64(a.flows/4))))
}

// ringAt returns a participant's ring, or nil.
func (t *Table) ringAt(id, f, n int) *ring { return t.participants[id].rings[f][n].Load() }

func newRing(entries uint32) *ring { return &ring{entries: make([]atomic.Uint32, entries)} }

func (r *ring) push(entry uint32) {
	r.entries[r.at].Store(entry)
	if r.at++; r.at == len(r.entries) {
		r.at = 0
	}
	r.next++
}

// publishRings publishes the entries that were pushed since the last call to other handles.
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

// bounds returns the range of positions that a handle sees, and the head as it was loaded.
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

// still returns the record of an entry and its meta. ok reports whether the record matches the
// entry: a live flow in a state of the ring's kind, with the same part of the sum.
//
// The sum is loaded after a meta that is live. That meta was stored after the sum (activate), and a
// record that was live while this handle is online is not reused before it calls Enter again: so no
// handle writes the sum meanwhile.
func (a *arena) still(entry uint32, kind Shed) (i uint32, m conn.Meta, ok bool) {
	i = entry & (1<<a.indexBits - 1)
	if i == 0 {
		return 0, 0, false
	}
	f := a.flow(i)
	if m = f.load(); !m.Live() || !ofKind(m, kind) {
		return i, m, false
	}
	return i, m, f.sum<<a.indexBits == entry&^(1<<a.indexBits-1)
}

// ofKind reports whether a flow with this meta is of a kind, or may become so with time.
func ofKind(m conn.Meta, kind Shed) bool {
	switch kind {
	case ShedUnconfirmed:
		return m.State() == Unconfirmed && !m.OneSided()
	case ShedIdle:
		return m.State() == UDPAssured
	}
	return ringOf(m) == kind
}

func indexBits(records uint32) uint { return uint(bits.Len32(records)) }
