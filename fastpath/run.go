package fastpath

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
)

// RunConfig is how the loop uses its core.
type RunConfig struct {
	CPU int // to pin to, or -1
	// Threads, where there is a CPU, pins the goroutine without locking it to a thread: much
	// shorter gaps when the Go scheduler preempts it (package thread). Nil: it is locked.
	Threads *thread.Group
	// Turn is how long the worker runs, at most, before it yields to the Go scheduler, which
	// otherwise preempts it after 10 ms (thread.Yield). 0 is never; a worker that is locked to its
	// thread never yields.
	Turn time.Duration
	// Spin is how long the worker polls for more work before it sleeps. The longer,
	// the lower the latency of the next packet and the higher the cost of silence.
	Spin time.Duration
	// SpinAsWorked limits the time spent spinning to the time spent on packets, in total: CPU time
	// then follows load, instead of reaching a whole core as soon as packets are closer than Spin.
	SpinAsWorked bool
	// Coalesce is how long one nap is. A worker naps if so many packets come that some are expected
	// meanwhile (Pace); 0 is never.
	Coalesce time.Duration
	// Sleep bounds one sleep, so that flows expire on an idle gateway.
	Sleep time.Duration
}

// busySleep bounds a sleep while packets are held for a next hop or a fragment.
const busySleep = time.Millisecond

// Run pins the calling goroutine and steps until ctx is done or Stop is called. Packets that are
// still held are then dropped.
func (w *Worker) Run(ctx context.Context, c RunConfig) error {
	var pin *thread.Pin
	var err error
	if c.CPU >= 0 && c.Threads != nil {
		if pin, err = c.Threads.Pin(c.CPU); err == nil {
			defer pin.Release()
		}
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if c.CPU >= 0 {
			err = thread.Bind(c.CPU)
		}
	}
	if err != nil {
		return fmt.Errorf("worker %d: %w", w.c.ID, err)
	}
	defer w.shutdown()
	cancel := context.AfterFunc(ctx, w.Stop)
	defer cancel()
	w.loop(c, pin)
	return nil
}

// loop steps while there is traffic and sleeps while there is none. pin, if there is one, is
// the goroutine's: it may have changed threads in any gap, and while it slept.
func (w *Worker) loop(c RunConfig, pin *thread.Pin) {
	var clock clock
	now := clock.now()
	turn := now // when this one began
	pace := NewPace(&c, now)
	for !w.stop.Load() {
		if pin != nil && c.Turn > 0 && now-turn >= uint64(c.Turn) {
			thread.Yield()
			pin.Check() // a thread that was looking for work just then takes it within less than thread.Gap
			now = clock.now()
			turn = now
		}
		w.tasks.run(w)
		moved := w.Step(now)
		after := clock.now()
		if moved > 0 {
			w.stats.BusyNanos.Store(w.stats.BusyNanos.Load() + after - now)
		}
		// Who is late with expiry or has packets parked does not rest: the next step continues.
		if rest := pace.After(moved, now, after); rest != GoOn && w.due == 0 && w.parked.count == 0 {
			if rest == Nap {
				thread.Nap(c.Coalesce)
			} else {
				w.sleep(c.Sleep)
			}
			woke := clock.now()
			w.stats.IdleNanos.Store(w.stats.IdleNanos.Load() + woke - after)
			after, turn = woke, woke
		}
		if pin != nil && after-now > thread.Gap {
			pin.Check()
		}
		now = after
	}
}

// sleep blocks until a link has packets, another goroutine wakes the worker, or the time is over.
// Meanwhile the worker uses no flow and no snapshot.
func (w *Worker) sleep(limit time.Duration) {
	if w.hops.len()+w.frags.len() > 0 {
		limit = busySleep
	}
	w.publishAllBackends()
	w.flows.Leave()
	w.planner.Snap, w.planner.View = nil, nil
	w.stats.Generation.Store(stats.Offline)
	fds := w.wake.fds[:1]
	for _, l := range w.c.Links {
		if fd := l.FD(); fd >= 0 && len(fds) < cap(fds) {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	// An error is EINTR, or a link was just closed: the next step handles that.
	_, _ = unix.Poll(fds, int(limit/time.Millisecond))
	if fds[0].Revents != 0 {
		w.wake.drain()
	}
	w.stats.Polls.Add(1)
	// From here on any generation may be loaded. This store must come before the
	// load in begin: a writer that has published since sees that the worker is awake.
	w.stats.Generation.Store(0)
}

// Stop ends Run after the current step. Safe from any goroutine.
func (w *Worker) Stop() {
	w.stop.Store(true)
	w.wake.signal()
}

// shutdown accounts for what the worker still holds.
func (w *Worker) shutdown() {
	for _, h := range w.hops.held {
		w.countHeld(h.o.desc, -1)
		w.dropped(h.o.desc, stats.Shutdown)
	}
	for w.frags.first != 0 {
		w.dropped(w.unhold(w.frags.first).desc, stats.Shutdown)
	}
	for w.parked.count > 0 {
		d := w.parked.shift().desc
		w.countHeld(d, -1)
		w.dropped(d, stats.Shutdown)
	}
	w.hops.held, w.hops.anybodys = w.hops.held[:0], 0
	w.tasks.end()
	w.planner.Snap, w.planner.View = nil, nil
	w.publishAllBackends()
	w.publish(1)
	w.stats.Generation.Store(stats.Offline)
	w.flows.Leave()
}

func newRandom(seed [32]byte) *mrand.ChaCha8 {
	if seed == ([32]byte{}) {
		rand.Read(seed[:]) // never fails (crypto/rand)
	}
	return mrand.NewChaCha8(seed)
}
