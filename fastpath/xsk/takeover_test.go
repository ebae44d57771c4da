//go:build root

package xsk

import (
	"encoding/gob"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// takerEnv is set in the environment of the test binary that takes over.
const takerEnv = "SLUICE_XSK_TAKER"

// echo is a worker that sends received packets back.
type echo struct {
	sockets []*Socket
	pool    *fastpath.Pool
	batch   [64]fastpath.Desc
	echoed  uint64
}

// step leaves the transmitted packets in the ring if flush is false.
func (e *echo) step(flush bool) {
	for _, s := range e.sockets {
		s.Complete(e.pool)
		s.Refill(e.pool)
		n := s.Receive(e.batch[:])
		sent := s.Transmit(e.batch[:n])
		for _, d := range e.batch[sent:n] {
			e.pool.Put(d.Addr)
		}
		e.echoed += uint64(sent)
		if flush {
			s.Flush()
		}
	}
}

// report is the output of the process that took over, written at its end.
type report struct {
	Echoed, Foreign uint64
	Waited          int // packets in the receive ring, when it took over
	Unsent          int // in the transmit ring
	Free, Total     int // frames, after its sockets were closed
}

// TestTakeOver hands a socket to another process under traffic, with packets in all of its rings:
// no packet is lost or duplicated, and every frame is in one place.
func TestTakeOver(t *testing.T) {
	if os.Getenv(takerEnv) != "" {
		taker(t)
		return
	}
	xsktest.EnterNamespace(t)
	for range 3 {
		handOver(t)
	}
}

// window bounds the packets in flight, so that no ring is ever full.
const window = 1000

func handOver(t *testing.T) {
	w := xsktest.NewWire(t, "sl0", "sl0p")
	defer w.Delete(t)
	const frames = 8192
	u, err := NewUMEM(UMEMConfig{Frames: frames, FrameSize: 2048})
	must(t, err)
	s, err := Open(t.Context(), Config{Interface: w.Dev, UMEM: u, Mode: Copy})
	must(t, err)
	e := &echo{sockets: []*Socket{s}, pool: fastpath.NewPool(frames, 2048)}
	s.Refill(e.pool)
	w.Redirect(t, 0, s.FD())
	shape, files := u.Shape()
	child := startTaker(t, shape, files)

	seen := map[uint64]int{}
	var returned, sent atomic.Uint64
	receive := func() {
		w.Receive(t, seen)
		returned.Store(uint64(len(seen)))
	}
	const packets = 20_000
	var ended atomic.Bool
	var sender sync.WaitGroup
	defer func() { ended.Store(true); sender.Wait() }()
	sender.Go(func() {
		for n := uint64(0); n < packets && !ended.Load(); {
			if n < returned.Load()+window {
				w.Send(t, n, n+1)
				n++
				sent.Store(n)
			}
		}
	})
	eventually(t, "packets by the first process", func() { e.step(true); receive() },
		func() bool { return len(seen) >= packets/3 })
	eventually(t, "packets in the rings", receive, func() bool { return sent.Load() >= returned.Load()+window })
	e.step(false)
	must(t, child.send(u.Custody()))
	must(t, u.Abandon())
	eventually(t, "packets by the second process", receive, func() bool { return len(seen) == packets })
	r := child.end(t)
	for n, times := range seen {
		if times != 1 {
			t.Errorf("packet %d came %d times", n, times)
		}
	}
	if r.Echoed+e.echoed != packets || r.Foreign != 0 || r.Free != frames || r.Total != frames {
		t.Errorf("first process %d, second %+v: want %d packets and %d frames", e.echoed, r, packets, frames)
	}
	if r.Waited == 0 || r.Unsent == 0 {
		t.Errorf("%d packets waited to be received, %d to be sent: the test shows nothing without", r.Waited, r.Unsent)
	}
}

// TestFrameInTwoRings: Assume waits if the kernel has published a packet, but not yet that its
// frame left the fill ring. If rings permanently have more frames than were given to them, it
// returns an error.
func TestFrameInTwoRings(t *testing.T) {
	const entries = 8
	ring := func() []byte { return make([]byte, heapOffsets.Desc+entries*16) }
	fill, rx := ring(), ring()
	s := &Socket{
		fill:       newProducer[uint64](fill, &heapOffsets, entries),
		rx:         newConsumer[unix.XDPDesc](rx, &heapOffsets, entries),
		tx:         newProducer[unix.XDPDesc](ring(), &heapOffsets, entries),
		completion: newConsumer[uint64](ring(), &heapOffsets, entries),
	}
	atomic.StoreUint32(s.fill.producer, entries)
	atomic.StoreUint32(s.rx.producer, 3)
	var kernel sync.WaitGroup
	kernel.Go(func() {
		time.Sleep(ringsSettleWithin / 10)
		atomic.StoreUint32(s.fill.consumer, 3)
	})
	if err := s.check(entries, 0); err != nil {
		t.Error(err)
	}
	kernel.Wait()
	if err := s.check(entries-1, 0); err == nil {
		t.Errorf("%d frames are in rings that got %d", entries, entries-1)
	}
}

// child is the first process's handle of the second process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  *gob.Encoder
	by  *gob.Decoder
}

func startTaker(t *testing.T, shape Shape, files []int) *child {
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestTakeOver$")}
	c.cmd.Env = append(os.Environ(), takerEnv+"=1")
	c.cmd.Stderr = os.Stderr
	for _, fd := range files {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		must(t, err)
		f := os.NewFile(uintptr(own), "")
		defer f.Close()
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, f)
	}
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	must(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	c.to, c.by = gob.NewEncoder(c.in), gob.NewDecoder(out)
	must(t, c.send(shape))
	ready := false
	must(t, c.by.Decode(&ready))
	return c
}

func (c *child) send(v any) error { return c.to.Encode(v) }

// end stops the child, and returns its report.
func (c *child) end(t *testing.T) (r report) {
	must(t, c.in.Close())
	must(t, c.by.Decode(&r))
	must(t, c.cmd.Wait())
	return r
}

// taker is the second process: it maps the UMEM and sockets, waits for the custody, and echoes
// until its input ends.
func taker(t *testing.T) {
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	var shape Shape
	must(t, in.Decode(&shape))
	files := make([]int, 1+len(shape.Sockets))
	for i := range files {
		files[i] = 3 + i
	}
	u, sockets, err := Take(shape, files)
	must(t, err)
	must(t, out.Encode(true))
	var c Custody
	must(t, in.Decode(&c))
	free, err := u.Assume(c)
	must(t, err)
	s := sockets[0]
	r := report{Waited: int(s.rx.pending()), Unsent: int(s.tx.pending()), Total: shape.Frames}
	e := &echo{sockets: sockets, pool: fastpath.NewPoolOf(shape.Frames, shape.FrameSize, free)}
	var over atomic.Bool
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // returns at the end of the input
		over.Store(true)
	}()
	for !over.Load() {
		e.step(true)
		if n := e.pool.Free() + s.Frames(); n != shape.Frames {
			t.Fatalf("%d frames of %d", n, shape.Frames)
		}
	}
	if err := s.Close(e.pool); err != nil {
		t.Fatal(err)
	}
	r.Echoed, r.Foreign, r.Free = e.echoed, s.Counters().ForeignFrames, e.pool.Free()
	must(t, u.Close())
	must(t, out.Encode(r))
	os.Exit(0) // before the test writes its own output
}

// TestAssumeRefuses: an inconsistent Custody is an error, and does not change the UMEM.
func TestAssumeRefuses(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	s := r.open(w, smallRings)
	s.Refill(r.pool)
	shape, files := r.umem.Shape()
	own := func() (list []int) {
		for _, fd := range files {
			n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			must(t, err)
			list = append(list, n)
		}
		return list
	}
	u, _, err := Take(shape, own())
	must(t, err)
	for _, c := range []struct {
		name   string
		change func(*Custody)
	}{
		{"another number of frames", func(c *Custody) { c.Owners = c.Owners[1:] }},
		{"a socket too few", func(c *Custody) { c.Sockets = nil }},
		{"a socket that does not exist", func(c *Custody) { c.Owners[0] = fillOwner(7) }},
		{"a frame of the fill ring is free", func(c *Custody) {
			c.Owners[slices.Index(c.Owners, fillOwner(0))] = userSpace
		}},
		{"a kept frame in no list", func(c *Custody) {
			c.Owners[slices.Index(c.Owners, userSpace)] = kept
		}},
		{"a list with a frame that is not kept", func(c *Custody) { c.Sockets[0].Done = []uint64{0} }},
		{"a list with an invalid frame", func(c *Custody) { c.Kept = []KeptFrames{{Addrs: []uint64{1 << 40}}} }},
	} {
		custody := r.umem.Custody()
		c.change(&custody)
		if _, err := u.Assume(custody); err == nil {
			t.Errorf("%s: assumed", c.name)
		}
	}
	if _, err := u.Assume(r.umem.Custody()); err != nil {
		t.Error(err)
	}
	must(t, u.Abandon())
	for _, broken := range []func(*Shape){
		func(s *Shape) { s.Sockets = nil },
		func(s *Shape) { s.Frames = 1 << 20 },
		func(s *Shape) { s.FrameSize = 1000 },
		func(s *Shape) { s.Sockets[0].Rx = 100 },
		func(s *Shape) { s.Sockets[0].Slot = maxSockets },
		func(s *Shape) { s.Sockets[0].Mode = ZeroCopy },
	} {
		bad := shape
		bad.Sockets = slices.Clone(shape.Sockets)
		broken(&bad)
		before := openFiles(t)
		if _, _, err := Take(bad, own()); err == nil {
			t.Errorf("taken: %+v", bad)
		}
		if n := openFiles(t); n != before {
			t.Errorf("%d files are open, %d before: %+v", n, before, bad)
		}
	}
	var behind *KeptError
	if err := s.Close(r.pool); err != nil && !errors.As(err, &behind) {
		t.Error(err)
	}
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}
