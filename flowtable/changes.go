package flowtable

import "sync/atomic"

// changes is a ring of the records of tracked flows, and of copies, that packets or a handle have
// changed or ended. It has the records to read, not their changes: a reader finds the present state
// of the flow. If the ring is full, the handle sets markMissed of the record, and group.missed.
//
// Writers: the handle writes entries and tail, the reader head.
type changes struct {
	head    atomic.Uint64 // position of the first entry that was not read
	_       [56]byte
	tail    atomic.Uint64 // publishes the entries before it; pairs with the load in Changed
	_       [56]byte
	next    uint64 // position after the last entry
	entries [changesSize]atomic.Uint32
}

// changesSize is the number of entries, of 4 bytes: 8 ms of 1,000,000 changes a second.
const changesSize = 1 << 13

// change adds a changed record to the handle's ring.
func (h *Handle) change(r Ref) {
	c := h.changes
	if c.next-c.head.Load() == changesSize {
		h.t.markOf(r).Or(markMissed)
		h.t.group.missed.Store(true) // publishes the mark; pairs with the swap in Changed
		return
	}
	c.entries[c.next%changesSize].Store(uint32(r))
	c.next++
}

// changed adds a changed flow to the ring, if other gateways may have copies of it.
func (h *Handle) changed(r Ref) {
	if h.t.group.marks != nil && h.t.markOf(r).Load()&markTracked != 0 {
		h.change(r)
	}
}

// copyChanged adds a copy that a packet has changed to the ring, so that its owner gets its state.
func (h *Handle) copyChanged(r Ref) {
	if h.OwnerOf(r) != 0 {
		h.change(r)
	}
}

// Publish makes the handle's changes visible to Changed, as Enter and Leave do. It reports whether
// any of them were not read yet.
func (h *Handle) Publish() (unread bool) {
	c := h.changes
	if c == nil {
		return false
	}
	c.tail.Store(c.next)
	return c.next != c.head.Load()
}

// Bounds of the search for records with markMissed in one call of Changed: 60 us for marks that
// are not set, and as many calls of do as a ring has entries.
const (
	missedMarks = 1 << 16
	missedCalls = changesSize
)

// Changed calls do with each tracked flow, or copy, that a handle has changed or ended since the
// last call. A record may have another flow by then. If more records have changed than the rings
// have room for, it takes several calls, and returns true if it must be called again. Only one
// goroutine may call it.
func (t *Table) Changed(do func(r Ref)) (more bool) {
	for i := range t.participants[:t.watermark.Load()] {
		c := t.participants[i].changes.Load()
		if c == nil {
			continue
		}
		head, tail := c.head.Load(), c.tail.Load()
		for ; head != tail; head++ {
			do(Ref(c.entries[head%changesSize].Load()))
		}
		c.head.Store(head) // the handle may write these entries again
	}
	return t.findMissed(do)
}

// findMissed is Changed for records that did not fit into a ring. It checks each mark once after
// missed was set.
func (t *Table) findMissed(do func(r Ref)) (more bool) {
	g, slots := &t.group, t.Slots()
	if g.missed.Swap(false) {
		g.unsearched = slots
	}
	for looks, calls := 0, 0; g.unsearched > 0 && looks < missedMarks && calls < missedCalls; looks++ {
		slot := g.next
		if g.next++; g.next == slots {
			g.next = 0
		}
		g.unsearched--
		if w := &g.marks[slot]; w.Load()&markMissed != 0 {
			w.And(^uint32(markMissed)) // before do: a later change is noted again
			do(t.AtSlot(slot))
			calls++
		}
	}
	return g.unsearched > 0
}
