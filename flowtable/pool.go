package flowtable

import "sync/atomic"

// The places of records that no flow uses:
//
//	fresh ──take──> local magazines <──> freed (shared stack of magazines)
//	  live flow ──retire──> limbo ──every online handle entered──> local magazines
//	                            └──Leave──> orphans ──Enter──> another's limbo
//
// Lists are linked through the dead records themselves: next links the records of a list. The first
// record of a list on the shared stack of free records also has the list's header, in a word that
// otherwise only live flows use:
//
//	bound  next list on the stack << 32 | records in the list
//
// That is safe for free records only. Another handle that found a record live may still have a ref
// to it while it is in limbo, and may Bind it: so the headers of limbo's lists are kept outside the
// records (limbo, orphans.go).

// stack is a lock-free stack of lists (Treiber): tag << 32 | ref of the top list's first record.
// The tag counts pops and pushes, so that a pop fails if another handle has popped and pushed the
// same list meanwhile.
type stack struct {
	top atomic.Uint64
	_   [56]byte
}

func (s *stack) push(t *Table, l list) {
	for f := t.flow(l.first); ; {
		top := s.top.Load()
		f.bound.Store(top<<32 | uint64(l.n))
		if s.top.CompareAndSwap(top, (top>>32+1)<<32|uint64(l.first)) {
			return // publishes the list; pairs with pop
		}
	}
}

// pop returns the list on top, empty if there is none. Its last field is not set.
func (s *stack) pop(t *Table) list {
	for {
		top := s.top.Load()
		if uint32(top) == 0 {
			return list{}
		}
		// Another handle may have popped the list, and its records may even be live: then the swap
		// fails.
		below, n := t.stacked(Ref(top))
		if s.top.CompareAndSwap(top, (top>>32+1)<<32|uint64(below)) {
			return list{first: Ref(top), n: n}
		}
	}
}

// stacked reads the header of a list on a stack.
func (t *Table) stacked(first Ref) (below Ref, n uint32) {
	facts := t.flow(first).bound.Load()
	return Ref(facts >> 32), uint32(facts)
}

// list is a chain of dead records with one owner.
type list struct {
	first, last Ref
	n           uint32
}

func (l *list) push(t *Table, r Ref) {
	if l.first == 0 {
		l.last = r
	}
	t.flow(r).next.Store(uint32(l.first))
	l.first = r
	l.n++
}

func (l *list) pop(t *Table) Ref {
	r := l.first
	l.first = Ref(t.flow(r).next.Load())
	l.n--
	return r
}

const (
	magazineSize = 32
	freshSize    = 8
)

// magazines are the free records of one family that a handle keeps (Bonwick's magazines): the
// current list, a full list in reserve so that alternating creates and deletes do not go to the
// shared stack each time, and a run of fresh records.
type magazines struct {
	current, full       list
	freshNext, freshEnd uint32
}

// get returns a free record, or 0.
func (m *magazines) get(t *Table, a *arena) uint32 {
	if m.current.n == 0 {
		m.current, m.full = m.full, list{}
	}
	if m.current.n == 0 {
		m.current = a.freed.pop(t)
	}
	if m.current.n > 0 {
		return m.current.pop(t).index()
	}
	if m.freshNext == m.freshEnd {
		m.freshNext, m.freshEnd = a.takeFresh()
	}
	if m.freshNext == m.freshEnd {
		return 0
	}
	m.freshNext++
	return m.freshNext - 1
}

func (m *magazines) put(t *Table, a *arena, r Ref) {
	if m.current.n == magazineSize {
		if m.full.n != 0 {
			m.full.give(t, a)
		}
		m.current, m.full = list{}, m.current
	}
	m.current.push(t, r)
}

// give puts a list on the shared stack.
func (l *list) give(t *Table, a *arena) {
	a.freed.push(t, *l)
	*l = list{}
}

// flush moves all records to the shared stack.
func (m *magazines) flush(a *arena, t *Table) {
	for m.freshNext != m.freshEnd {
		m.put(t, a, a.ref(m.freshNext))
		m.freshNext++
	}
	for _, l := range []*list{&m.current, &m.full} {
		if l.n != 0 {
			l.give(t, a)
		}
	}
}

// takeFresh returns a run of records that were never used, empty if there are none.
func (a *arena) takeFresh() (first, end uint32) {
	for {
		first = a.fresh.Load()
		end = min(first+freshSize, a.records+1)
		if first == end || a.fresh.CompareAndSwap(first, end) {
			return first, end
		}
	}
}

// limbo holds dead records until no handle can have a ref to them (quiescent-state based
// reclamation). A batch is stamped with a new epoch after its records left the index. The records
// are free when every online participant has seen that epoch, because each participant has then
// entered after the records left.
type limbo struct {
	open    list   // retired since the last Enter
	retired uint32 // number of records that the last stamp closed
	batches [limboBatches]stamped
	first   int
	n       int
}

const limboBatches = 8

type stamped struct {
	list
	stamp uint64
}

// stamp closes the open batch.
func (l *limbo) stamp(t *Table) {
	l.retired = l.open.n
	if l.open.n != 0 {
		l.add(t, stamped{l.open, t.epoch.Add(1)})
		l.open = list{}
	}
}

// add appends a batch. If there is no room, it joins the batch to the last one, which then waits
// for the later of both stamps.
func (l *limbo) add(t *Table, b stamped) {
	if l.n < limboBatches {
		l.batches[(l.first+l.n)%limboBatches] = b
		l.n++
		return
	}
	y := &l.batches[(l.first+l.n-1)%limboBatches]
	t.flow(y.last).next.Store(uint32(b.first))
	y.last, y.n, y.stamp = b.last, y.n+b.n, max(y.stamp, b.stamp)
}

func (l *limbo) drop() stamped {
	b := l.batches[l.first]
	l.first = (l.first + 1) % limboBatches
	l.n--
	return b
}

// maxReclaim bounds the records that one Enter reclaims. The bound is higher, twice the number that
// the handle retired in the last batch, if that is more. In a flood every packet may end a flow,
// and if handles retired more than they reclaim, all of the reserve would end up in limbo.
const maxReclaim = 256

// reclaim moves records whose grace period is over to the magazines.
func (h *Handle) reclaim() {
	l, t := &h.limbo, h.t
	h.adopt()
	if l.n == 0 {
		return
	}
	safe := h.safe()
	for budget := max(maxReclaim, 2*l.retired); l.n > 0 && budget > 0; budget-- {
		b := &l.batches[l.first]
		if b.stamp > safe {
			return
		}
		r := b.pop(t)
		if b.n == 0 {
			l.drop()
		}
		f := family(r&refV6 != 0)
		h.local[f].put(t, &t.arenas[f], r)
	}
}

// retire puts a record in limbo. Its keys must have left the index.
func (h *Handle) retire(r Ref) { h.limbo.open.push(h.t, r) }
