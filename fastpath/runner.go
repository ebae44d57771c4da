package fastpath

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/internal/boottime"
)

// Runner is a goroutine, pinned to a CPU, that steps workers in turn. Workers that share a CPU
// share a Runner: two goroutines would wait for each other's time slices.
//
// Hand moves a worker from one Runner to another between two steps, with its open sockets. So a
// worker moves to another CPU without packet loss.
type Runner struct {
	c     RunConfig
	wake  wakeup
	until *Worker // Run returns when this worker has ended; nil: when ctx is done

	// attention is true if attend has something to do.
	attention atomic.Bool
	mu        sync.Mutex
	arrived   []*Worker // taken, but not yet in workers
	waiting   Waiting   // for the next pass and later ones
	ended     bool      // takes no more workers
	pinned    chan struct{}

	// Only Run's goroutine uses the fields below.
	workers []*Worker
	pin     *thread.Pin
	fds     []unix.PollFd

	// bound is pin, for other goroutines; nil before Run.
	bound atomic.Pointer[thread.Pin]
}

// NewRunner returns a runner without workers.
func NewRunner(c RunConfig) (*Runner, error) {
	r := &Runner{c: c, waiting: c.Waiting, pinned: make(chan struct{})}
	if err := r.wake.open(); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return r, nil
}

// Close closes the runner's eventfd. Run must have ended.
func (r *Runner) Close() { r.wake.close() }

// Take makes the runner step a worker, which no other runner may step. It returns false if the
// runner has ended. Safe from any goroutine.
func (r *Runner) Take(w *Worker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.arrived = append(r.arrived, w)
	r.alert()
	return true
}

// Hand moves the worker to another runner after the current step. It must run on the worker's
// goroutine (Worker.Do).
func (w *Worker) Hand(to *Runner) { w.control.next = to }

// Wait changes how the runner waits. Safe from any goroutine.
func (r *Runner) Wait(w Waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting != w {
		r.waiting = w
		r.alert()
	}
}

// CPU returns the CPU that the runner is pinned to, or -1.
func (r *Runner) CPU() int { return r.c.CPU }

// Thread returns the ID of the thread that the runner was last seen on, or 0. Safe from any
// goroutine.
func (r *Runner) Thread() int {
	if p := r.bound.Load(); p != nil {
		return p.Thread()
	}
	return 0
}

// Pinned returns a channel that is closed when Run has pinned the runner.
func (r *Runner) Pinned() <-chan struct{} { return r.pinned }

// alert makes the loop call attend.
func (r *Runner) alert() {
	r.attention.Store(true)
	r.wake.signal()
}

// Run pins the calling goroutine and steps the runner's workers until ctx is done and they have
// ended.
func (r *Runner) Run(ctx context.Context) (err error) {
	if r.c.CPU >= 0 && r.c.Threads != nil {
		r.pin, err = r.c.Threads.Pin(r.c.CPU)
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if r.c.CPU >= 0 {
			err = thread.Bind(r.c.CPU)
		}
	}
	if err != nil {
		r.end()
		return err
	}
	r.bound.Store(r.pin)
	close(r.pinned)
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.alert()
	})
	defer stop()
	r.loop(ctx)
	if r.pin != nil {
		r.pin.Release()
	}
	return nil
}

// loop steps the workers while there is traffic, and sleeps while there is none. The goroutine may
// have changed threads in any gap and during a sleep.
func (r *Runner) loop(ctx context.Context) {
	var clock clock
	now := clock.now()
	turn := now // start of the current turn (RunConfig.Turn)
	pace := NewPace(&r.c.Waiting, now)
	for {
		if r.attention.Load() && !r.attend(ctx) {
			return
		}
		if r.pin != nil && r.c.Turn > 0 && now-turn >= uint64(r.c.Turn) {
			thread.Yield()
			r.pin.Check() // a thread that is looking for work may take the goroutine in less than thread.Gap
			now = clock.now()
			turn = now
		}
		began, moved, mayRest := now, 0, true
		for _, w := range r.workers {
			w.control.tasks.run()
			n := w.Step(now)
			after := clock.now()
			if n > 0 {
				w.stats.BusyNanos.Store(w.stats.BusyNanos.Load() + after - now)
			}
			if w.control.next != nil || w.control.stop.Load() {
				r.attention.Store(true)
			}
			moved, mayRest, now = moved+n, mayRest && w.mayRest(), after
		}
		if len(r.workers) == 0 {
			now = clock.now()
		}
		after, rest := now, pace.After(moved, began, now)
		if moved == 0 && r.paused() {
			rest = Sleep
		}
		if rest != GoOn && mayRest && !r.attention.Load() {
			switch rest {
			case Nap:
				r.nap(max(r.c.Coalesce, r.c.LongNap))
			case Break:
				r.nap(r.c.Break)
			default:
				r.sleep()
			}
			now = clock.now()
			pace.Rested(now)
			for _, w := range r.workers {
				w.stats.IdleNanos.Store(w.stats.IdleNanos.Load() + now - after)
			}
			if now-after >= thread.Retaken {
				turn = now
			}
		}
		if r.pin != nil && now-began > thread.Gap {
			r.pin.Check()
		}
	}
}

// paused reports whether all workers are paused. The runner then sleeps at once instead of polling:
// another process is taking over, and may need this CPU.
func (r *Runner) paused() bool {
	for _, w := range r.workers {
		if !w.control.paused {
			return false
		}
	}
	return len(r.workers) > 0
}

// attend carries out requests of other goroutines: it takes workers that have arrived, ends
// workers, hands workers to other runners, and changes how the runner waits. It reports whether the
// loop continues.
func (r *Runner) attend(ctx context.Context) bool {
	r.attention.Store(false) // before reading the requests: the next pass sees later ones
	r.mu.Lock()
	for _, w := range r.arrived {
		w.stats.Begin(boottime.Nanos())
	}
	r.workers = append(r.workers, r.arrived...)
	r.arrived = nil
	r.mu.Unlock()
	r.workers = slices.DeleteFunc(r.workers, func(w *Worker) bool {
		if w.control.stop.Load() {
			w.shutdown()
			return true
		}
		to := w.control.next
		w.control.next = nil
		return to != nil && to != r && to.Take(w) // not while r.mu is held: to may hand one to r
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.c.Waiting = r.waiting // the loop's Pace reads it
	switch {
	case len(r.workers)+len(r.arrived) > 0:
		return true
	case r.until != nil:
		r.ended = r.until.control.stop.Load()
	default:
		r.ended = ctx.Err() != nil
	}
	return !r.ended
}

// end ends the runner and the workers that it has taken but never stepped.
func (r *Runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, w := range r.arrived {
		w.shutdown()
	}
	r.arrived = nil
}

func (r *Runner) nap(d time.Duration) {
	if r.c.Quiet {
		thread.QuietNap(d)
	} else {
		thread.Nap(d)
	}
}

// sleep blocks until a link has packets, another goroutine wakes the runner or a worker, or the
// time limit is reached.
func (r *Runner) sleep() {
	limit, idle := r.c.Sleep, true
	r.fds = append(r.fds[:0], r.wake.poll())
	for _, w := range r.workers {
		r.fds = append(r.fds, w.control.wake.poll())
	}
	for _, w := range r.workers {
		if w.control.paused {
			continue
		}
		if w.holds() || w.unsent() {
			limit, idle = min(limit, busySleep), false
		}
		w.rest()
		for _, l := range w.c.Links {
			if fd := l.FD(); fd >= 0 {
				r.fds = append(r.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
		}
	}
	// An error is EINTR, or a link was just closed: the next step handles that.
	ready, err := 0, error(nil)
	if r.c.Quiet {
		moment := min(limit, thread.Moment)
		ready, err = thread.Poll(r.fds, moment)
		limit -= moment
	}
	timeout := int(limit / time.Millisecond)
	if len(r.workers) == 0 {
		timeout = -1 // Take wakes it
	}
	if ready == 0 && err == nil {
		ready, err = unix.Poll(r.fds, timeout)
	}
	if r.fds[0].Revents != 0 {
		r.wake.drain()
	}
	for i, w := range r.workers {
		if r.fds[1+i].Revents != 0 {
			w.control.wake.drain()
		}
		if w.control.paused {
			continue
		}
		w.awake()
		if idle && ready == 0 && err == nil {
			w.probe()
		}
	}
}

// RunConfig sets how a runner uses its CPU.
type RunConfig struct {
	CPU int // to pin to, or -1
	// Threads, if CPU is set, pins the goroutine without locking it to a thread, which makes gaps
	// much shorter when the Go scheduler preempts it (package thread). Nil: it is locked to its
	// thread.
	Threads *thread.Group
	// Turn is the maximum time before the goroutine yields to the Go scheduler, which otherwise
	// preempts it after 10 ms (thread.Yield). 0 means never; a goroutine that is locked to its
	// thread never yields.
	Turn time.Duration
	Waiting
}

// busySleep is the maximum sleep while packets wait for a next hop, a fragment or another Flush.
const busySleep = time.Millisecond

// Run runs the worker on a Runner of its own, until ctx is done or Stop is called. Packets that are
// still held are then dropped.
func (w *Worker) Run(ctx context.Context, c RunConfig) error {
	r, err := NewRunner(c)
	if err != nil {
		return fmt.Errorf("worker %d: %w", w.c.ID, err)
	}
	defer r.Close()
	cancel := context.AfterFunc(ctx, w.Stop)
	defer cancel()
	r.until = w
	r.Take(w)
	return r.Run(ctx)
}
