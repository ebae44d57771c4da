//go:build root

package xsk

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

var smallRings = Config{RxSize: 256, TxSize: 256, FillSize: 256, CompletionSize: 256}

// TestRebind opens a queue directly after its socket was closed, while the old pool still holds it.
func TestRebind(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	best, worst := time.Hour, time.Duration(0)
	c := smallRings
	c.TxBudget = minTxBudget // so that Close must make several calls
	start := time.Now()
	r.open(w, c)
	first := time.Since(start) // of a free queue
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
		must(t, s.Close(r.pool)) // sends the transmitted packets that were not flushed
		seen := map[uint64]int{}
		// The sent packets may still be on their way through the kernel.
		eventually(t, "the 200 packets that Close sent", func() { w.Receive(t, seen) },
			func() bool { return len(seen) == 200 })
		r.law("after Close")
		if r.pool.Free() != 1024 {
			t.Errorf("%d of 1024 frames after Close", r.pool.Free())
		}
		if s.Close(r.pool) == nil {
			t.Error("closed twice")
		}
	}
	t.Logf("open after close took %v to %v", best, worst)
	// The longest time depends on the load of the machine, and so does the first one.
	if best > 250*time.Millisecond+2*first {
		t.Errorf("opening again took at least %v, the first time %v", best, first)
	}
}

// TestDownUp: while a link is down, packets wait in its transmit ring and it takes no more; when it
// is up again, it continues.
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
	eventually(t, "the 5 packets", func() { s.Flush(); s.Complete(r.pool); w.Receive(t, seen) },
		func() bool { return len(seen) == 5 })
	if !s.Up() {
		t.Error("not up again")
	}
	got := 0
	eventually(t, "10 packets after up", func() {
		w.Send(t, 0, 1) // the kernel starts the peer's queue again at any time within a second
		n, _ := r.step(s, s)
		got += n
	}, func() bool { return got >= 10 })
}

// TestIdleLinkNoticesDown: without packets to send, only the probes of Flush notice a link down.
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

// TestDeviceDeleted deletes and re-creates the devices of two sockets, in every order that matters
// to the kernel's registration of the UMEM.
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
				r.generate(r.links[v], 0, 3) // in the ring when the device is deleted
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

// TestJoinWithoutDeletedSocket: the socket that all others joined is unbound, but its worker has
// not noticed yet; a new socket must not depend on it.
func TestJoinWithoutDeletedSocket(t *testing.T) {
	xsktest.EnterNamespace(t)
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")}
	r := newRig(t, 2048)
	a := r.open(wires[0], smallRings)
	wires[0].Delete(t)
	b := r.open(wires[1], smallRings)
	if !b.registered {
		t.Error("the second socket joined the one that is gone")
	}
	wires[1].Send(t, 0, 5)
	got := 0
	eventually(t, "5 packets", func() { n, _ := r.step(b, b); got += n }, func() bool { return got == 5 })
	a.Probe()
	if !a.Gone() {
		t.Error("the first socket is not gone")
	}
}

// TestFrameLawAtRandom runs random operations on two links.
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

// TestStall: for a queue that only receives, the kernel returns success but sends no packet.
func TestStall(t *testing.T) {
	xsktest.EnterNamespace(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "sl0", NumRxQueues: 2, NumTxQueues: 1},
		PeerName: "sl0p"}))
	for _, name := range []string{"sl0", "sl0p"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	r := newRig(t, 512)
	c := smallRings
	c.Interface, c.UMEM, c.Queue = "sl0", r.umem, 1
	s, err := Open(t.Context(), c)
	must(t, err)
	r.links = append(r.links, s)
	if n := r.generate(s, 0, 5); n != 5 {
		t.Fatalf("transmit ring took %d of 5", n)
	}
	s.Flush()
	if got := s.Counters(); got.Stalls != 1 || got.Kicks != 2 || s.tx.untaken() != 5 || !s.Up() {
		t.Errorf("%+v, %d untaken, up %v: want one stall and the five still there", got, s.tx.untaken(), s.Up())
	}
	if s.Unsent() {
		t.Error("Unsent is true, but another Flush would not send them")
	}
}

// TestUnsent: if a full send buffer leaves frames in the ring, Unsent is true, and another Flush
// sends them. A full socket of another kind simulates the buffer, because veth frees the real one
// while it sends.
func TestUnsent(t *testing.T) {
	xsktest.EnterNamespace(t)
	r := newRig(t, 512)
	s := r.open(xsktest.NewWire(t, "sl0", "sl0p"), smallRings)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	for err == nil {
		err = unix.Sendto(ends[0], nil, unix.MSG_DONTWAIT, nil)
	}
	if n := r.generate(s, 0, 5); n != 5 {
		t.Fatalf("transmit ring took %d of 5", n)
	}
	own := s.fd
	s.fd = ends[0]
	s.Flush()
	s.fd = own
	if got := s.Counters(); !s.Unsent() || s.tx.untaken() != 5 || got.EAGAIN != 1 {
		t.Errorf("unsent %v, %d untaken, %+v; want five after one EAGAIN", s.Unsent(), s.tx.untaken(), got)
	}
	s.Flush()
	if s.Unsent() || s.tx.untaken() != 0 {
		t.Errorf("unsent %v, %d untaken after the next Flush", s.Unsent(), s.tx.untaken())
	}
}

// TestOtherGoroutines calls the methods that are safe for any goroutine while the worker forwards,
// for the race detector.
func TestOtherGoroutines(t *testing.T) {
	xsktest.EnterNamespace(t)
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p"),
		xsktest.NewWire(t, "sl2", "sl2p")}
	ns, err := netns.Get()
	must(t, err)
	defer ns.Close()
	r := newRig(t, 2048)
	s := r.open(wires[0], smallRings)
	opened, stop := make(chan *Socket, 2), make(chan struct{})
	var others sync.WaitGroup
	repeat := func(f func()) { // until the end of the test, without other synchronisation
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
					runtime.Gosched()
				}
			}
		})
	}
	for _, w := range wires[1:] { // at the same time
		others.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread is in the namespace
			must(t, netns.Set(ns))
			c := smallRings
			c.Interface, c.UMEM, c.RebindFor = w.Dev, r.umem, 20*time.Second
			other, err := Open(t.Context(), c)
			if err != nil {
				t.Error(err)
				close(opened)
				return
			}
			opened <- other
			repeat(func() {
				if _, err := other.Stats(); err != nil && !other.Gone() {
					t.Error(err)
				}
			})
		})
	}
	repeat(func() { r.umem.Kept(); s.Mode() })
	got := 0
	eventually(t, "two sockets opened elsewhere", func() {
		wires[0].Send(t, 0, 1)
		n, _ := r.step(s, s)
		got += n
	}, func() bool { return len(opened) == 2 && got > 200 || t.Failed() })
	for range 2 {
		other := <-opened
		r.links = append(r.links, other)
		for _, w := range wires[1:] {
			if w.Dev == other.name {
				w.Delete(t)
			}
		}
		eventually(t, "gone", other.Flush, other.Gone)
		must(t, other.Close(r.pool))
	}
	close(stop)
	others.Wait()
}
