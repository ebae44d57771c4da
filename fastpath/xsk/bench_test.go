//go:build root

package xsk

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// BenchmarkKick measures one system call without frames to send, and the same call by RawSyscall,
// which the Go scheduler does not know of.
func BenchmarkKick(b *testing.B) {
	xsktest.EnterNamespace(b)
	w := xsktest.NewWire(b, "sl0", "sl0p")
	r := newRig(b, 512)
	s := r.open(w, smallRings)
	b.Run("Syscall", func(b *testing.B) {
		for b.Loop() {
			s.kick()
		}
	})
	b.Run("RawSyscall", func(b *testing.B) {
		for b.Loop() {
			unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		}
	})
}

// BenchmarkFlush64 measures a batch of 64 packets from Transmit to Complete, which includes the
// kernel's send path.
func BenchmarkFlush64(b *testing.B) {
	xsktest.EnterNamespace(b)
	w := xsktest.NewWire(b, "sl0", "sl0p")
	w.ClosePeer()
	r := newRig(b, 1024)
	s := r.open(w, smallRings)
	for b.Loop() {
		r.generate(s, 0, 64)
		s.Flush()
		s.Complete(r.pool)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}

// BenchmarkOwners measures the owner table's cost for a frame that is given to a ring and returns.
func BenchmarkOwners(b *testing.B) {
	o := make(owners, 8192)
	next := uint64(0)
	for b.Loop() {
		for i := range uint64(64) {
			o.give((next+i*37)%8192, txOwner(1))
		}
		for i := range uint64(64) {
			if !o.take((next+i*37)%8192, txOwner(1)) {
				b.Fatal("the frame has another owner")
			}
		}
		next += 64
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/frame")
}

// BenchmarkRings measures a packet's cost in the four methods of a link, with rings on the heap and
// no kernel: 64 packets per step, of 4096 frames. It also reports the median of the steps, which is
// insensitive to preemption of the benchmark.
func BenchmarkRings(b *testing.B) {
	const entries, frames, batch = 2048, 4096, 64
	fill, tx := heapRing[uint64](entries, 0), heapRing[unix.XDPDesc](entries, 0)
	rx, completion := heapRing[unix.XDPDesc](entries, 0), heapRing[uint64](entries, 0)
	s := &Socket{
		owners: make(owners, frames), frameShift: 11, inFill: fillOwner(0), inTx: txOwner(0), up: true, copyMode: true,
		fill: newProducer[uint64](fill, &heapOffsets, entries), tx: newProducer[unix.XDPDesc](tx, &heapOffsets,
			entries),
		rx: newConsumer[unix.XDPDesc](rx, &heapOffsets, entries), completion: newConsumer[uint64](completion,
			&heapOffsets, entries),
	}
	pool := fastpath.NewPool(frames, 2048)
	k := struct {
		fill       consumer[uint64]
		tx         consumer[unix.XDPDesc]
		rx         producer[unix.XDPDesc]
		completion producer[uint64]
	}{newConsumer[uint64](fill, &heapOffsets, entries), newConsumer[unix.XDPDesc](tx, &heapOffsets, entries),
		newProducer[unix.XDPDesc](rx, &heapOffsets, entries), newProducer[uint64](completion, &heapOffsets, entries)}
	s.Refill(pool)
	descs := make([]fastpath.Desc, batch)
	steps := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		n := k.fill.peek(batch)
		k.rx.reserve(n)
		for i := range n {
			*k.rx.at(i) = unix.XDPDesc{Addr: *k.fill.at(i) + 256, Len: 60}
		}
		k.fill.release(n)
		k.rx.submit(n)
		began := time.Now()
		got := s.Receive(descs)
		s.Transmit(descs[:got])
		step := time.Since(began)
		n = k.tx.peek(batch)
		k.completion.reserve(n)
		for i := range n {
			*k.completion.at(i) = k.tx.at(i).Addr
		}
		k.tx.release(n)
		k.completion.submit(n)
		began = time.Now()
		s.Complete(pool)
		s.Refill(pool)
		if step += time.Since(began); len(steps) < cap(steps) {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	b.ReportMetric(float64(steps[len(steps)/2])/batch, "p50-ns/packet")
}
