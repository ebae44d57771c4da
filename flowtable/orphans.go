package flowtable

import (
	"math/bits"
	"runtime"
	"sync/atomic"
)

// orphans holds the limbo of a handle that has left, so that the next handle to enter waits for the
// grace period in its place. Each participant has one.
//
// The batches' descriptors are on the heap and not in the records. The grace period is not over, so
// another handle may have a ref to a record, read all of the record, and write meta, bound and
// owner. Limbo uses only the next field of a record, which no holder of a ref reads or writes.
//
// Only one participant at a time may use n and batches:
//
//	busy false           the participant itself, and it sets busy before it writes
//	busy, bit set        none
//	busy, bit cleared    the participant that cleared the bit; it resets busy afterwards
//
// The bit is the participant's in Table.orphaned. Setting it publishes the batches to the
// participant that clears it. Resetting busy pairs with the owner's next load of busy, and shows
// that the batches have been read. If several participants clear the bit, only one finds it set.
type orphans struct {
	busy    atomic.Bool
	n       int
	batches [limboBatches]stamped
	_       [48]byte
}

// orphaned has a bit for each participant whose orphans wait to be adopted.
type orphaned [(MaxHandles + 63) / 64]atomic.Uint64

// abandon passes the batches to the next handle that enters. It fails while another handle takes
// the previous ones: then the handle keeps its batches until the next Enter or Leave.
func (h *Handle) abandon() bool {
	l, o := &h.limbo, &h.t.orphans[h.id]
	if l.n == 0 {
		return true
	}
	if o.busy.Load() {
		return false
	}
	o.busy.Store(true) // one writer while it is false
	for o.n = 0; l.n > 0; o.n++ {
		o.batches[o.n] = l.drop()
	}
	h.t.orphaned[h.id/64].Or(1 << (h.id % 64)) // publishes the batches; pairs with And in adoptFrom
	return true
}

// adopt takes the orphans that the handle itself left, so that it can leave again, and the orphans
// of one other participant.
func (h *Handle) adopt() {
	h.adoptFrom(h.id)
	for w := range h.t.orphaned {
		if waiting := h.t.orphaned[w].Load(); waiting != 0 && h.limbo.n < limboBatches {
			h.adoptFrom(w*64 + bits.TrailingZeros64(waiting))
			return
		}
	}
}

func (h *Handle) adoptFrom(id int) {
	word, bit := &h.t.orphaned[id/64], uint64(1)<<(id%64)
	if word.Load()&bit == 0 || word.And(^bit)&bit == 0 {
		return // none, or another handle was faster
	}
	o := &h.t.orphans[id]
	for _, b := range o.batches[:o.n] {
		h.limbo.add(h.t, b)
	}
	o.busy.Store(false) // pairs with the load in abandon
}

// abandonAll is abandon for a handle that will not enter again. It waits for the handle that takes
// the previous batches, which has only a few words to copy.
func (h *Handle) abandonAll() {
	for !h.abandon() {
		runtime.Gosched()
	}
}
