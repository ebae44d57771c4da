package xsk

import (
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// BenchmarkKick is what one system call costs when there is nothing to send, and
// what it would cost without telling the Go scheduler.
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

// BenchmarkFlush64 is a batch of 64 packets from Transmit to Complete, so the
// kernel's own send path is in it.
func BenchmarkFlush64(b *testing.B) {
	xsktest.EnterNamespace(b)
	w := xsktest.NewWire(b, "sl0", "sl0p")
	w.Deaf()
	r := newRig(b, 1024)
	s := r.open(w, smallRings)
	for b.Loop() {
		r.generate(s, 0, 64)
		s.Flush()
		s.Complete(r.pool)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}

// BenchmarkOwners is what the owner table costs a frame that is given to a ring and comes back.
func BenchmarkOwners(b *testing.B) {
	o := make(owners, 8192)
	next := uint64(0)
	for b.Loop() {
		for i := range uint64(64) {
			o.give((next+i*37)%8192, txOwner(1))
		}
		for i := range uint64(64) {
			if !o.take((next+i*37)%8192, txOwner(1)) {
				b.Fatal("not ours")
			}
		}
		next += 64
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/frame")
}
