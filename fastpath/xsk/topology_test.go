//go:build root

package xsk

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// eventually runs step until done, and fails after twenty seconds.
func eventually(tb testing.TB, what string, step func(), done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		step()
		if done() {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within 20 s", what)
		}
		runtime.Gosched()
	}
}

// rig has the UMEM, the pool and the links of a worker.
type rig struct {
	tb    testing.TB
	umem  *UMEM
	pool  *fastpath.Pool
	links []*Socket
	batch []fastpath.Desc
	held  int // frames that the test itself holds
}

func newRig(tb testing.TB, frames int) *rig {
	tb.Helper()
	u, err := NewUMEM(UMEMConfig{Frames: frames, FrameSize: 2048})
	must(tb, err)
	r := &rig{tb: tb, umem: u, pool: fastpath.NewPool(frames, 2048), batch: make([]fastpath.Desc, 64)}
	tb.Cleanup(func() {
		for _, s := range r.links {
			if s == nil || s.FD() < 0 {
				continue
			}
			var behind *KeptError // the law below counts them
			if err := s.Close(r.pool); err != nil && !errors.As(err, &behind) {
				tb.Fatal(err)
			}
		}
		r.law("after the test")
		if r.pool.Free()+r.held+u.Kept() != frames {
			tb.Errorf("after closing all sockets %d of %d frames are free", r.pool.Free(), frames)
		}
		must(tb, u.Close())
	})
	return r
}

// open adds a link on a wire and fills its fill ring.
func (r *rig) open(w *xsktest.Wire, c Config) *Socket {
	r.tb.Helper()
	r.links = append(r.links, nil)
	return r.reopen(len(r.links)-1, w, c)
}

// reopen replaces a closed link by a new one.
func (r *rig) reopen(i int, w *xsktest.Wire, c Config) *Socket {
	r.tb.Helper()
	c.Interface, c.UMEM, c.RebindFor = w.Dev, r.umem, 20*time.Second // the machine may be busy
	s, err := Open(r.tb.Context(), c)
	must(r.tb, err)
	s.Refill(r.pool)
	w.Redirect(r.tb, s.Queue(), s.FD())
	r.links[i] = s
	return s
}

// law asserts that every frame is in exactly one place.
func (r *rig) law(when string) {
	r.tb.Helper()
	sum := r.pool.Free() + r.held + r.umem.Kept()
	for _, s := range r.links {
		if s == nil {
			continue // it could not be opened
		}
		sum += s.Frames()
		owned := len(s.done) + s.partial.frames
		for _, o := range r.umem.owners {
			if o == s.inFill || o == s.inTx {
				owned++
			}
		}
		if s.FD() >= 0 && owned != s.Frames() {
			r.tb.Errorf("%s %s: the link counts %d frames, the owner table %d", s.name, when, s.Frames(), owned)
		}
		for _, addr := range s.done {
			if r.umem.owners[addr>>s.frameShift] != kept {
				r.tb.Errorf("%s %s: a completed frame is not marked", s.name, when)
			}
		}
	}
	if sum != r.umem.Frames() {
		r.tb.Errorf("frame law broken %s: %d free + %d held + %d kept + links = %d, want %d",
			when, r.pool.Free(), r.held, r.umem.Kept(), sum, r.umem.Frames())
	}
}

// step moves packets from one link to another like a worker, and returns how many. It frees packets
// that the second link does not take.
func (r *rig) step(from, to *Socket) (received, sent int) {
	for _, s := range r.links {
		s.Complete(r.pool)
	}
	n := from.Receive(r.batch)
	sent = to.Transmit(r.batch[:n])
	for _, d := range r.batch[sent:n] {
		r.pool.Put(d.Addr)
	}
	for _, s := range r.links {
		s.Flush()
		s.Refill(r.pool)
	}
	return n, sent
}

// generate takes n frames, writes packets numbered from first on into them, and transmits them
// without a Flush. It returns how many the link took.
func (r *rig) generate(s *Socket, first uint64, n int) int {
	r.tb.Helper()
	batch := make([]fastpath.Desc, 0, n)
	for i := range n {
		addr, ok := r.pool.Get()
		if !ok {
			break
		}
		addr += packetHeadroom - 24 // as after pushing tags
		xsktest.FillPacket(r.umem.Bytes()[addr:addr+xsktest.PacketLen], first+uint64(i))
		batch = append(batch, fastpath.Desc{Addr: addr, Len: xsktest.PacketLen})
	}
	sent := s.Transmit(batch)
	for _, d := range batch[sent:] {
		r.pool.Put(d.Addr)
	}
	return sent
}
