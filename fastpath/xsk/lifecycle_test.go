package xsk

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

var smallRings = Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256}

func TestModeAndReason(t *testing.T) {
	xsktest.EnterNamespace(t)
	in, out := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	r := newRig(t, 1024)
	a := r.open(in, smallRings)
	if err := r.umem.Close(); err == nil || !strings.Contains(err.Error(), "sl0 queue 0 is still open") {
		t.Errorf("closing a UMEM under its socket: %v", err)
	}
	if m, why := a.Mode(); m != Copy || why != "the driver has no AF_XDP zero-copy" {
		t.Errorf("veth is in %v, because %q", m, why)
	}
	b := r.open(out, smallRings)
	if m, why := b.Mode(); m != Copy || !strings.HasPrefix(why, "inherited from sl0 queue 0: ") {
		t.Errorf("shared socket is in %v, because %q", m, why)
	}
	must(t, b.Close(r.pool))

	other, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer other.Close()
	if _, err := Open(t.Context(), Config{Interface: "sl1", UMEM: other, Mode: ZeroCopy}); !errors.Is(err, ErrNoZeroCopy) {
		t.Errorf("zero-copy on veth: %v", err)
	}
	c := smallRings
	c.Interface, c.UMEM, c.Mode = "sl1", r.umem, ZeroCopy
	if _, err := Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "a UMEM each") {
		t.Errorf("zero-copy on a UMEM in copy mode: %v", err)
	}
	if _, err := Open(t.Context(), Config{Interface: "sl1", UMEM: other, ShareWith: a}); err == nil {
		t.Error("sharing with a socket on another UMEM was accepted")
	}
}

func TestOpenErrors(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	u, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer func() { must(t, u.Close()) }() // fails if a failed Open left its socket
	for name, tc := range map[string]struct {
		c    Config
		want string
	}{
		"no such interface": {Config{Interface: "sl9"}, "sl9 queue 0"},
		"no such index":     {Config{IfIndex: 1 << 20}, "interface 1048576 queue 0"},
		"stale index":       {Config{Interface: "sl0", IfIndex: 1}, "not 1"},
		"no such queue":     {Config{Interface: "sl0", Queue: 7}, "has no queue 7"},
		"odd ring":          {Config{Interface: "sl0", RxSize: 100}, "RxSize 100 is not a power of two"},
		"completion small":  {Config{Interface: "sl0", CompletionSize: 64}, "CompletionSize 64 is less than TxSize 2048"},
	} {
		tc.c.UMEM = u // and no subtest: it would have a thread of its own, outside the namespace
		_, err := Open(t.Context(), tc.c)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tc.want)
		}
	}
}

func TestMemlock(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	u, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer u.Close()
	withoutCapability(t, unix.CAP_IPC_LOCK)
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 4096, Max: old.Max}))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	if _, err := Open(t.Context(), Config{Interface: "sl0", UMEM: u}); !errors.Is(err, ErrMemlock) {
		t.Errorf("with a memlock limit of 4 KiB: %v", err)
	}
}

// withoutCapability drops an effective capability of this thread.
func withoutCapability(t *testing.T, capability int) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	must(t, unix.Capget(&head, &caps[0]))
	caps[capability/32].Effective &^= 1 << (capability % 32)
	must(t, unix.Capset(&head, &caps[0]))
}

func TestUMEM(t *testing.T) {
	for _, c := range []UMEMConfig{{Frames: 0, FrameSize: 2048}, {Frames: 8, FrameSize: 1024}, {Frames: 8, FrameSize: 3000}} {
		if _, err := NewUMEM(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	u, err := NewUMEM(UMEMConfig{Frames: 100, FrameSize: 4096, HugePages: true}) // huge or not, as the machine has
	must(t, err)
	if len(u.Bytes()) != 409600 || u.Frames() != 100 || u.FrameSize() != 4096 {
		t.Errorf("%d bytes in %d frames of %d", len(u.Bytes()), u.Frames(), u.FrameSize())
	}
	must(t, u.Close())
	if u.Close() == nil {
		t.Error("closed twice")
	}
}

func TestQueueIsTaken(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	mine, theirs := newRig(t, 512), newRig(t, 512)
	s := mine.open(w, smallRings)
	for name, u := range map[string]*UMEM{"another UMEM": theirs.umem, "the same UMEM": mine.umem} {
		c := smallRings
		c.Interface, c.UMEM, c.RebindFor = "sl0", u, 30*time.Millisecond
		start := time.Now()
		_, err := Open(t.Context(), c)
		if !errors.Is(err, ErrQueueTaken) || !strings.Contains(err.Error(), "sl0 queue 0: queue is taken") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took < c.RebindFor || took > 5*time.Second {
			t.Errorf("%s: gave up after %v", name, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
	w.Send(t, 0, 10) // the first is left alone
	got := 0
	eventually(t, "10 packets at the first socket", func() { n, _ := mine.step(s, s); got += n }, func() bool { return got == 10 })
}

// TestRebind opens a queue right after it was closed: its old pool still has it.
func TestRebind(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	best, worst := time.Hour, time.Duration(0)
	c := smallRings
	c.TxBudget = txBatch // so that Close has to call more than once
	r.open(w, c)
	must(t, r.links[0].Close(r.pool))
	for range 5 {
		start := time.Now()
		s := r.reopen(0, w, c)
		took := time.Since(start)
		best, worst = min(best, took), max(worst, took)
		if n := r.generate(s, 0, 200); n != 200 {
			t.Fatalf("transmit ring took %d of 200", n)
		}
		w.Send(t, 0, 20)
		must(t, s.Close(r.pool)) // sends what was transmitted and not flushed
		seen := map[uint64]int{}
		if w.Receive(t, seen); len(seen) != 200 {
			t.Errorf("%d of 200 packets were sent before Close", len(seen))
		}
		r.law("after Close")
		if r.pool.Free() != 1024 {
			t.Errorf("%d of 1024 frames after Close", r.pool.Free())
		}
		if s.Close(r.pool) == nil {
			t.Error("closed twice")
		}
	}
	t.Logf("open after close took %v to %v", best, worst)
	if best > 250*time.Millisecond { // the worst depends on what else the machine does
		t.Errorf("opening again took at least %v", best)
	}
}

// TestDownUp: packets wait in the transmit ring of a link that is down, it takes
// no more, and it carries on when it is up.
func TestDownUp(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	s := r.open(w, smallRings)
	if !s.Up() {
		t.Fatal("not up after Open")
	}
	if n := r.generate(s, 0, 5); n != 5 {
		t.Fatal("transmit ring did not take 5 packets")
	}
	w.Set(t, false)
	s.Flush()
	if s.Up() || s.Gone() || s.Counters().ENETDOWN == 0 {
		t.Errorf("up %v, gone %v, %+v after Flush into a device that is down", s.Up(), s.Gone(), s.Counters())
	}
	if n := r.generate(s, 5, 5); n != 0 {
		t.Errorf("a link that is down took %d packets", n)
	}
	s.Complete(r.pool)
	r.law("while down")
	if s.Frames() != 256+5 {
		t.Errorf("the link has %d frames while down, want its 261", s.Frames())
	}
	w.Set(t, true)
	seen := map[uint64]int{}
	eventually(t, "the 5 packets", func() { s.Flush(); s.Complete(r.pool); w.Receive(t, seen) }, func() bool { return len(seen) == 5 })
	if !s.Up() {
		t.Error("not up again")
	}
	got := 0
	eventually(t, "10 packets after up", func() {
		w.Send(t, 0, 1) // the kernel gives the peer its queue back when it pleases, within a second
		n, _ := r.step(s, s)
		got += n
	}, func() bool { return got >= 10 })
}

// TestIdleLinkNoticesDown: nothing is sent, so only Flush's own question tells.
func TestIdleLinkNoticesDown(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 512)
	s := r.open(w, smallRings)
	w.Set(t, false)
	before := s.Counters().Kicks
	for range probeEvery {
		s.Flush()
	}
	if s.Up() || s.Counters().Kicks != before+1 {
		t.Errorf("up %v after %d idle Flush calls, with %d kicks", s.Up(), probeEvery, s.Counters().Kicks-before)
	}
	w.Set(t, true)
	s.Flush()
	if !s.Up() {
		t.Error("the first Flush after up did not notice")
	}
}

// TestDeviceDeleted deletes and re-creates the devices of two sockets in every
// order that matters to the kernel's registration of the UMEM.
func TestDeviceDeleted(t *testing.T) {
	for name, victims := range map[string][]int{
		"the one that registered": {0}, "the one that joined": {1},
		"both": {0, 1}, "both, the other order": {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")}
			r := newRig(t, 2048)
			r.open(wires[0], smallRings)
			r.open(wires[1], smallRings)
			exchange(t, r, wires)
			for _, v := range victims {
				r.generate(r.links[v], 0, 3) // in the ring when the device goes
				wires[v].Send(t, 0, 3)
				wires[v].Delete(t)
			}
			for _, v := range victims {
				s := r.links[v]
				s.Flush()
				if !s.Gone() || s.Up() {
					t.Fatalf("gone %v, up %v after the device was deleted; %+v", s.Gone(), s.Up(), s.Counters())
				}
				r.law("with a device gone")
				must(t, s.Close(r.pool))
				wires[v].Make(t)
				r.reopen(v, wires[v], smallRings)
				r.law("after opening again")
			}
			exchange(t, r, wires)
		})
	}
}

// exchange forwards 50 packets each way between two links.
func exchange(t *testing.T, r *rig, wires []*xsktest.Wire) {
	t.Helper()
	for from, to := range []int{1, 0} {
		seen := map[uint64]int{}
		wires[from].Send(t, 0, 50)
		eventually(t, "50 packets across", func() {
			r.step(r.links[from], r.links[to])
			wires[to].Receive(t, seen)
		}, func() bool { return len(seen) == 50 })
	}
	r.law("after an exchange")
}

// TestGoneUnnoticed: the socket that all others joined is unbound, but its worker
// has not found out; a new socket must not depend on it.
func TestGoneUnnoticed(t *testing.T) {
	xsktest.EnterNamespace(t)
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")}
	r := newRig(t, 2048)
	a := r.open(wires[0], smallRings)
	wires[0].Delete(t)
	c := smallRings
	c.ShareWith = a
	b := r.open(wires[1], c)
	if m, why := b.Mode(); m != Copy || strings.Contains(why, "inherited") {
		t.Errorf("%v, because %q", m, why)
	}
	wires[1].Send(t, 0, 5)
	got := 0
	eventually(t, "5 packets", func() { n, _ := r.step(b, b); got += n }, func() bool { return got == 5 })
	a.Probe()
	if !a.Gone() {
		t.Error("the first socket is not gone")
	}
}

// TestKeptFrames: a frame that is still inside the device at Close must not be
// used before the kernel has let go of the queue.
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

// TestSort: what Close may take back, for a frame in each place that there is.
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
			s := &Socket{owners: make(owners, 8), frameShift: 11, inFill: fillOwner(3), inTx: txOwner(3), copyMode: tc.copyMode,
				rx: newConsumer[unix.XDPDesc](rx, &heapOffsets, 8), tx: newProducer[unix.XDPDesc](tx, &heapOffsets, 8),
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
				t.Errorf("%d come back, frames %v stay behind, want %v", len(back), behind, tc.behind)
			}
		})
	}
}

// TestFrameLawAtRandom does at random what can happen to two links.
func TestFrameLawAtRandom(t *testing.T) {
	xsktest.EnterNamespace(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")}
	r := newRig(t, 1024) // fewer than the rings could hold: pools run dry
	r.open(wires[0], smallRings)
	r.open(wires[1], smallRings)
	up := []bool{true, true}
	seen := map[uint64]int{}
	var hold []fastpath.Desc
	for i := range 3000 {
		v := rnd.IntN(2)
		s := r.links[v]
		switch k := rnd.IntN(100); {
		case k < 25 && up[v]:
			wires[v].Send(t, 0, uint64(rnd.IntN(40)))
		case k < 40:
			n := s.Receive(r.batch)
			hold = append(hold, r.batch[:n]...)
		case k < 55:
			n := s.Transmit(hold[:rnd.IntN(len(hold)+1)])
			hold = hold[n:]
		case k < 65:
			r.generate(s, 0, rnd.IntN(300))
		case k < 75:
			s.Refill(r.pool)
		case k < 85:
			s.Complete(r.pool)
		case k < 96:
			s.Flush()
		case k < 99:
			up[v] = !up[v]
			wires[v].Set(t, up[v])
		case i%4 == 0:
			must(t, s.Close(r.pool))
			r.reopen(v, wires[v], smallRings)
		}
		r.held = len(hold)
		r.law("at random")
		if t.Failed() {
			t.Fatalf("at operation %d", i)
		}
		wires[v].Receive(t, seen)
	}
	for _, d := range hold {
		r.pool.Put(d.Addr)
	}
	r.held = 0
}
