//go:build root

package xsk

import (
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

func TestReceive(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	s := r.open(w, Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256})
	if s.Frames() != 256 || r.pool.Free() != 768 {
		t.Fatalf("after Refill the link has %d frames, the pool %d", s.Frames(), r.pool.Free())
	}
	w.Send(t, 0, 100)
	next := uint64(0)
	eventually(t, "100 packets", func() {
		n := s.Receive(r.batch)
		r.held += n
		r.law("while the batch is held")
		for _, d := range r.batch[:n] {
			if d.Addr%2048 != packetHeadroom {
				t.Errorf("packet at offset %d of its frame, want %d", d.Addr%2048, packetHeadroom)
			}
			number, err := xsktest.PacketNumber(r.umem.Bytes()[d.Addr : d.Addr+uint64(d.Len)])
			if err != nil || number != next {
				t.Errorf("packet %d, want %d: %v", number, next, err)
			}
			next++
			r.pool.Put(d.Addr)
		}
		r.held -= n
		s.Refill(r.pool)
	}, func() bool { return next == 100 })
	r.law("after 100 packets")
}

func TestTransmit(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	s := r.open(w, Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256})
	if n := r.generate(s, 0, 10); n != 10 {
		t.Fatalf("transmit ring took %d of 10", n)
	}
	r.law("before Flush")
	s.Flush()
	seen := map[uint64]int{}
	eventually(t, "10 packets", func() { w.Receive(t, seen); s.Complete(r.pool) },
		func() bool { return len(seen) == 10 && s.Frames() == 256 })
	r.law("after completion")
}

// TestForward carries 100,000 packets between two devices that share a UMEM.
func TestForward(t *testing.T) {
	xsktest.EnterNamespace(t)
	in, out := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	r := newRig(t, 8192)
	a := r.open(in, Config{})
	b := r.open(out, Config{})
	const total, window = 100_000, 128
	seen := make(map[uint64]int, total)
	received := 0
	for first := uint64(0); first < total; first += window {
		in.Send(t, first, min(first+window, total))
		want := int(min(first+window, total))
		eventually(t, "a window", func() {
			n, _ := r.step(a, b)
			received += n
			out.Receive(t, seen)
		}, func() bool { return len(seen) == want })
		r.law("between windows")
	}
	for n, times := range seen {
		if times != 1 {
			t.Fatalf("packet %d arrived %d times", n, times)
		}
	}
	st, err := a.Stats()
	must(t, err)
	st.TxRingEmptyDescs = 0 // Probe finds the ring empty, which is no loss
	if received != total || st != (Statistics{}) {
		t.Errorf("received %d of %d; kernel counted %+v", received, total, st)
	}
	c := b.Counters()
	t.Logf("kicks %d (%.3f per packet), %+v", c.Kicks, float64(c.Kicks)/total, c)
	if c.ForeignFrames != 0 {
		t.Errorf("%d foreign frames", c.ForeignFrames)
	}
}

// TestBurst: one Flush must send a whole ring, however few packets one call sends.
func TestBurst(t *testing.T) {
	for name, budget := range map[string]int{"budget 32": minTxBudget, "budget of the ring": 0} {
		t.Run(name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			w := xsktest.NewWire(t, "sl0", "sl0p")
			r := newRig(t, 4096)
			s := r.open(w, Config{TxSize: 1024, RxSize: 64, FillSize: 64, CompletionSize: 1024, TxBudget: budget})
			if n := r.generate(s, 0, 1024); n != 1024 {
				t.Fatalf("transmit ring took %d of 1024", n)
			}
			s.Flush()
			if n := s.tx.untaken(); n != 0 {
				t.Errorf("%d packets stranded after Flush; %+v", n, s.Counters())
			}
			one := uint32(minTxBudget)
			canRaise := setsockopt(s.fd, unix.XDP_MAX_TX_SKB_BUDGET, &one) == nil // Linux 6.17
			if calls := s.Counters().Kicks; budget == 0 && canRaise && calls >= 1024/minTxBudget {
				t.Errorf("%d calls for a ring of 1024: the budget was not raised", calls)
			}
			if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || n < 1024*2048 {
				t.Errorf("send buffer of %d bytes does not hold the transmit ring: %v", n, err)
			}
			seen := map[uint64]int{}
			eventually(t, "1024 packets", func() { w.Receive(t, seen); s.Complete(r.pool) },
				func() bool { return len(seen) == 1024 && s.Frames() == 64 })
			t.Logf("%+v", s.Counters())
		})
	}
}

// TestFlushDrainsCompletions: a full completion ring blocks the transmit ring, and Flush has no
// pool to put its frames into.
func TestFlushDrainsCompletions(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 4096)
	s := r.open(w, Config{TxSize: 256, RxSize: 64, FillSize: 64, CompletionSize: 256})
	seen := map[uint64]int{}
	for i := range uint64(4) { // the second and the fourth ring-full find the completion ring full
		if n := r.generate(s, i*256, 256); n != 256 {
			t.Fatalf("transmit ring took %d of 256", n)
		}
		s.Flush()
		eventually(t, "a ring of packets", func() { w.Receive(t, seen) },
			func() bool { return len(seen) == int(i+1)*256 })
		if i%2 == 0 {
			continue
		}
		if n := s.tx.untaken(); n != 0 {
			t.Errorf("%d packets stranded behind a full completion ring", n)
		}
		if len(s.done) == 0 {
			t.Error("Flush took nothing out of the completion ring")
		}
		r.law("with completed frames in the link")
		eventually(t, "completion", func() { s.Complete(r.pool) }, func() bool { return s.Frames() == 64 })
		r.law("after completion")
	}
}

func TestFillStarvation(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 64)
	s := r.open(w, Config{RxSize: 256, TxSize: 64, FillSize: 64, CompletionSize: 64})
	w.Send(t, 0, 100)
	got := 0
	eventually(t, "64 packets", func() {
		n := s.Receive(r.batch)
		got += n
		for _, d := range r.batch[:n] {
			r.pool.Put(d.Addr)
		}
	}, func() bool { return got == 64 })
	var st Statistics
	eventually(t, "36 packets without a frame", func() {
		var err error
		st, err = s.Stats()
		must(t, err)
	}, func() bool { return st.RxDropped >= 36 })
	if st.RxDropped != 36 || st.RxFillRingEmptyDescs == 0 {
		t.Errorf("kernel counted %+v, want 36 dropped for want of frames", st)
	}
	s.Refill(r.pool)
	w.Send(t, 100, 101)
	eventually(t, "a packet after refilling", func() { got += s.Receive(r.batch) }, func() bool { return got == 65 })
	r.pool.Put(r.batch[0].Addr)
}

// TestReceiveRingFull: if the receive ring has no slot for a packet, its frame stays in the kernel
// and the packet is counted.
func TestReceiveRingFull(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 256)
	s := r.open(w, Config{RxSize: 32, TxSize: 32, FillSize: 128, CompletionSize: 32})
	w.Send(t, 0, 100)
	var st Statistics
	eventually(t, "68 packets without a slot", func() { // before any slot is free again
		var err error
		st, err = s.Stats()
		must(t, err)
	}, func() bool { return st.RxRingFull >= 68 })
	if st.RxRingFull != 68 {
		t.Errorf("kernel counted %+v, want 68 without a slot", st)
	}
	got := 0
	eventually(t, "32 packets", func() {
		n := s.Receive(r.batch)
		got += n
		for _, d := range r.batch[:n] {
			r.pool.Put(d.Addr)
		}
	}, func() bool { return got == 32 })
	r.law("with a frame inside the kernel") // newRig checks that Close gets it back
}

func TestNoAllocation(t *testing.T) {
	xsktest.EnterNamespace(t)
	in, out := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	r := newRig(t, 2048)
	a := r.open(in, Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256})
	b := r.open(out, Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256})
	packet := make([]byte, xsktest.PacketLen)
	xsktest.FillPacket(packet, 1)
	moved := 0
	allocs := testing.AllocsPerRun(500, func() {
		for range 8 {
			if err := in.Inject(packet); err != nil {
				t.Fatal(err)
			}
		}
		n, _ := r.step(a, b)
		moved += n
		_, _, _ = a.Up(), a.Frames(), a.FD()
		a.Probe()
	})
	if allocs != 0 {
		t.Errorf("%v allocations per step", allocs)
	}
	if moved < 1000 {
		t.Errorf("only %d packets moved", moved)
	}
}

// TestBrokenInvariants: invalid descriptors, which would silently corrupt packets, must panic.
func TestBrokenInvariants(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 256)
	s := r.open(w, Config{RxSize: 64, TxSize: 64, FillSize: 64, CompletionSize: 64})
	addr, _ := r.pool.Get()
	r.held++
	inFillRing := s.fill.slots[0]
	for name, d := range map[string]fastpath.Desc{
		"empty":                    {Addr: addr + 100, Len: 0},
		"extends beyond its frame": {Addr: addr + 2000, Len: 49},
		"frame in a ring":          {Addr: inFillRing, Len: 60},
		"beyond the UMEM":          {Addr: 256 * 2048, Len: 60},
		"negative-like length":     {Addr: addr, Len: 1<<32 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			s.Transmit([]fastpath.Desc{d})
		})
	}
	if n := s.Transmit([]fastpath.Desc{{Addr: addr + 2000, Len: 48}}); n != 1 {
		t.Errorf("a packet that ends with its frame was not taken")
	}
	r.held--
}
