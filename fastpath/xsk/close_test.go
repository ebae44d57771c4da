package xsk

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSort: the frames that Close may take back, with one frame in each possible place.
func TestSort(t *testing.T) {
	const inRx, inDeviceRx, inTxRing, inDeviceTx, inCompletion, stashed = 0, 1, 2, 3, 4, 5
	for _, tc := range []struct {
		name           string
		copyMode, gone bool
		behind         []uint64
	}{
		{"copy", true, false, []uint64{inDeviceTx}},
		{"zero-copy", false, false, []uint64{inDeviceRx, inDeviceTx}},
		{"copy, device deleted", true, true, nil},
		{"zero-copy, device deleted", false, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rx, tx, completion := heapRing[unix.XDPDesc](8, 0), heapRing[unix.XDPDesc](8, 0), heapRing[uint64](8, 0)
			s := &Socket{owners: make(owners, 8), frameShift: 11, inFill: fillOwner(3), inTx: txOwner(3),
				copyMode: tc.copyMode,
				rx:       newConsumer[unix.XDPDesc](rx, &heapOffsets, 8), tx: newProducer[unix.XDPDesc](tx,
					&heapOffsets, 8),
				completion: newConsumer[uint64](completion, &heapOffsets, 8), done: []uint64{stashed << 11}}
			s.gone.Store(tc.gone)
			kernelRx := newProducer[unix.XDPDesc](rx, &heapOffsets, 8)
			kernelTx := newConsumer[unix.XDPDesc](tx, &heapOffsets, 8)
			kernelCompletion := newProducer[uint64](completion, &heapOffsets, 8)
			for _, frame := range []uint64{inRx, inDeviceRx} {
				s.owners.give(frame, s.inFill)
			}
			for i, frame := range []uint64{inCompletion, inDeviceTx, inTxRing} {
				s.owners.give(frame, s.inTx)
				s.tx.reserve(3)
				*s.tx.at(uint32(i)) = unix.XDPDesc{Addr: frame << 11, Len: 60}
			}
			s.tx.submit(3)
			kernelTx.peek(3)
			kernelTx.release(2)
			kernelCompletion.reserve(1)
			*kernelCompletion.at(0) = inCompletion << 11
			kernelCompletion.submit(1)
			kernelRx.reserve(1)
			*kernelRx.at(0) = unix.XDPDesc{Addr: inRx<<11 + packetHeadroom, Len: 60}
			kernelRx.submit(1)
			s.owners[stashed] = kept

			back, behind := s.sort()
			for i := range behind {
				behind[i] >>= 11
			}
			if !slices.Equal(behind, tc.behind) || len(back)+len(behind) != 6 {
				t.Errorf("%d are free, frames %v are kept, want %v kept", len(back), behind, tc.behind)
			}
		})
	}
}
