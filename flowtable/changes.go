package flowtable

import "sync/atomic"

// changes is a ring of the records of tracked flows, and of copies, that packets or a handle have
// changed or ended. It says which records to read, not how they have changed: a reader finds the
// flow as it is. If the ring is full, the reader must read all records (group.missed).
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

// change notes that a record has changed.
func (h *Handle) change(r Ref) {
	c := h.changes
	if c.next-c.head.Load() == changesSize {
		h.t.group.missed.Store(true)
		return
	}
	c.entries[c.next%changesSize].Store(uint32(r))
	c.next++
}

// changed notes that a flow has changed, if other gateways may have copies of it.
func (h *Handle) changed(r Ref) {
	if h.t.group.marks != nil && h.t.markOf(r).Load()&markTracked != 0 {
		h.change(r)
	}
}

// sighted notes that a packet has changed a copy, so that its owner learns of it.
func (h *Handle) sighted(r Ref) {
	if h.OwnerOf(r) != 0 {
		h.change(r)
	}
}

// Publish makes the handle's changes visible to Changed, as Enter and Leave do. It reports whether
// there are any that were not read.
func (h *Handle) Publish() (unread bool) {
	c := h.changes
	if c == nil {
		return false
	}
	c.tail.Store(c.next)
	return c.next != c.head.Load()
}

// Changed calls do with each tracked flow, or copy, that a handle has changed or ended since the
// last call. A record may have another flow by then. all says that more have changed than the rings
// have room for: then the caller must read all records. Only one goroutine may call it.
func (t *Table) Changed(do func(r Ref)) (all bool) {
	all = t.group.missed.Swap(false)
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
	return all
}
