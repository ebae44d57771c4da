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
	links []*xsk.Socket // for each queue in and out
	macs  [2]macs       // by the side on which a packet arrived
	batch []fastpath.Desc
	cpu   int
	stats WorkerStats

	packets, forwarded, dropped uint64 // private; published in stats
}

// macs are the first twelve bytes of outgoing packets: destination and source.
type macs [12]byte

// step is one pass of forwarding.
func (w *worker) step() int {
	moved := 0
	for i, in := range w.links {
		n := in.Receive(w.batch)
		if n == 0 {
			continue
		}
		moved += n
		batch := w.batch[:n]
		w.address(batch, &w.macs[i%2])
		sent := w.links[i^1].Transmit(batch)
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

// address writes the MAC addresses of outgoing packets.
func (w *worker) address(batch []fastpath.Desc, m *macs) {
	first := binary.LittleEndian.Uint64(m[:])
	last := binary.LittleEndian.Uint32(m[8:])
	for _, d := range batch {
		b := w.mem[d.Addr:]
		binary.LittleEndian.PutUint64(b, first)
		binary.LittleEndian.PutUint32(b[8:], last)
	}
}

// publish updates the counters in stats, once per step that moved packets.
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

// run steps while there is traffic and sleeps otherwise. It calls up when it is on its CPU, or has
// failed.
func (w *worker) run(ctx context.Context, c *Config, up func()) error {
	up = sync.OnceFunc(up)
	defer up()
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
	if w.cpu >= 0 {
		// As the gateway's workers, with their time slice.
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
			// An error is EINTR, or the link is gone: the next step reports it.
			_, _ = unix.Poll(fds, int(sleep/time.Millisecond))
			w.stats.Sleeps.Add(1)
			now = time.Now()
		}
	}
}

// close releases everything. The worker must have ended.
func (w *worker) close() (errs []error) {
	for _, l := range w.links {
		if l != nil {
			errs = append(errs, l.Close(w.pool))
		}
	}
	return append(errs, w.umem.Close())
}
