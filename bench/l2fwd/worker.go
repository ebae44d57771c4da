package l2fwd

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
)

// worker forwards between queues of each side.
type worker struct {
	umem  *xsk.UMEM
	mem   []byte
	pool  *fastpath.Pool
	links []*xsk.Socket // for each queue one, or in and out
	macs  []macs        // by the side that a packet came in on
	batch []fastpath.Desc
	cpu   int
	stats WorkerStats

	packets, forwarded, dropped uint64 // private; published in stats
}

// macs are the first twelve bytes of what leaves: destination and source.
type macs struct {
	bytes [12]byte
	swap  bool // exchange instead
}

// step is one pass: the whole of forwarding.
func (w *worker) step() int {
	moved, sides := 0, len(w.macs)
	for i, in := range w.links {
		n := in.Receive(w.batch)
		if n == 0 {
			continue
		}
		moved += n
		batch := w.batch[:n]
		from := i % sides
		w.address(batch, &w.macs[from])
		sent := w.links[i-from+sides-1-from].Transmit(batch)
		for _, d := range batch[sent:] {
			w.pool.Put(d.Addr)
		}
		w.forwarded += uint64(sent)
		w.dropped += uint64(n - sent)
	}
	for _, l := range w.links {
		l.Flush()
		l.Complete(w.pool)
		l.Refill(w.pool)
	}
	return moved
}

// address writes where the packets go next.
func (w *worker) address(batch []fastpath.Desc, m *macs) {
	first := binary.LittleEndian.Uint64(m.bytes[:])
	last := binary.LittleEndian.Uint32(m.bytes[8:])
	for _, d := range batch {
		b := w.mem[d.Addr:]
		if m.swap {
			var old [12]byte
			copy(old[:], b)
			copy(b, old[6:])
			copy(b[6:], old[:6])
			continue
		}
		binary.LittleEndian.PutUint64(b, first)
		binary.LittleEndian.PutUint32(b[8:], last)
	}
}

// publish makes what was done visible, once per step that did something.
func (w *worker) publish(moved int) {
	w.packets += uint64(moved)
	w.stats.Packets.Store(w.packets)
	w.stats.Forwarded.Store(w.forwarded)
	w.stats.Dropped.Store(w.dropped)
	w.stats.Steps.Store(w.stats.Steps.Load() + 1)
	var busy uint64
	for _, l := range w.links {
		busy += l.Counters().EBUSY
	}
	w.stats.Kicks.Store(w.kicks())
	w.stats.Busy.Store(busy)
}

func (w *worker) kicks() (n uint64) {
	for _, l := range w.links {
		n += l.Counters().Kicks
	}
	return n
}

// run steps while there is traffic and sleeps while there is none.
// It calls up once it is on its CPU, or cannot be.
func (w *worker) run(ctx context.Context, c *Config, up func()) error {
	up = sync.OnceFunc(up)
	defer up()
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
	if w.cpu >= 0 {
		// As the gateway's workers are, with their time slice.
		group, err := thread.NewGroup(thread.Priority{})
		if err != nil {
			return err
		}
		if _, err := group.Pin(w.cpu); err != nil {
			return err
		}
	}
	up()
	fds := make([]unix.PollFd, len(w.links))
	for i, l := range w.links {
		fds[i] = unix.PollFd{Fd: int32(l.FD()), Events: unix.POLLIN}
	}
	done := ctx.Done()
	now := time.Now()
	began := now
	waits, sleep := config.WaitsOf(c.Waiting), config.MaxSleep
	pace := fastpath.NewPace(&fastpath.Waiting{Spin: waits.Spin.D(), SpinAsWorked: waits.SpinAsWorked,
		Coalesce: waits.Coalesce.D()}, 0)
	for {
		moved := w.step()
		if moved > 0 {
			w.publish(moved)
		}
		select {
		case <-done:
			return nil
		default:
		}
		before := now
		now = time.Now()
		switch pace.After(moved, uint64(before.Sub(began)), uint64(now.Sub(began))) {
		case fastpath.Nap:
			thread.Nap(waits.Coalesce.D())
			now = time.Now()
		case fastpath.Sleep:
			// An error is EINTR or a link that went: the next step finds out.
			_, _ = unix.Poll(fds, int(sleep/time.Millisecond))
			w.stats.Sleeps.Add(1)
			now = time.Now()
		}
	}
}

// close gives everything back. The worker must have ended.
func (w *worker) close() (errs []error) {
	for _, l := range w.links {
		if l != nil {
			errs = append(errs, l.Close(w.pool))
		}
	}
	return append(errs, w.umem.Close())
}
