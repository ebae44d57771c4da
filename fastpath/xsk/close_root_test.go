//go:build root

package xsk

import (
	"errors"
	"testing"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestKeptFrames: a frame that is inside the device at Close must not be used before the kernel has
// released the queue.
func TestKeptFrames(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 512)
	s := r.open(w, smallRings)
	addr, _ := r.pool.Get()
	s.owners.give(addr>>s.frameShift, s.inTx) // as if the device never completed it
	s.frames++
	var kept *KeptError
	if err := s.Close(r.pool); !errors.As(err, &kept) || kept.Frames != 1 || kept.Interface != "sl0" {
		t.Fatalf("Close: %v, want one frame kept", err)
	}
	if r.umem.Kept() != 1 || r.pool.Free() != 511 {
		t.Errorf("%d kept, %d free after Close", r.umem.Kept(), r.pool.Free())
	}
	r.law("with a frame kept")
	s = r.reopen(0, w, smallRings)
	if r.umem.Kept() != 0 || s.Frames() != 257 {
		t.Errorf("%d kept, %d in the link after opening again", r.umem.Kept(), s.Frames())
	}
	s.Complete(r.pool)
	r.law("after the frame came back")
	if s.Frames() != 256 || r.pool.Free() != 256 {
		t.Errorf("%d in the link, %d free at the end", s.Frames(), r.pool.Free())
	}
}
