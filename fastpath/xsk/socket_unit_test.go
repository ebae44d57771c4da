package xsk

import (
	"testing"

	"sluice.dev/sluice/fastpath"
)

// TestForeignFrames: a kernel that completes a frame twice must not make it free twice.
func TestForeignFrames(t *testing.T) {
	const entries = 8
	completions := heapRing[uint64](entries, 0)
	kernel := newProducer[uint64](completions, &heapOffsets, entries)
	s := &Socket{owners: make(owners, 4), frameShift: 11, inFill: fillOwner(0), inTx: txOwner(0),
		completion: newConsumer[uint64](completions, &heapOffsets, entries), done: make([]uint64, 0, entries),
		frames: 1}
	pool := fastpath.NewPool(4, 2048)
	addr, _ := pool.Get()
	s.owners.give(addr>>11, s.inTx)
	for i, a := range []uint64{addr + 300, addr + 300, 99 << 11} {
		kernel.reserve(3)
		*kernel.at(uint32(i)) = a
	}
	kernel.submit(3)
	s.Complete(pool)
	if pool.Free() != 4 || s.Frames() != 0 || s.Counters().ForeignFrames != 2 {
		t.Errorf("%d free, %d in the link, %d foreign; want 4, 0, 2", pool.Free(), s.Frames(),
			s.Counters().ForeignFrames)
	}
}
