package fastpath

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Do runs f on the worker's goroutine between two steps and waits for its end. The daemon changes
// links with it. It returns false if f has not run and never will, because the worker ended or ctx
// was done first.
func (w *Worker) Do(ctx context.Context, f func(*Worker)) bool {
	done := make(chan struct{})
	t := &task{f: func() { f(w) }, done: func() { close(done) }}
	if !w.control.tasks.add(t) {
		return false
	}
	w.control.wake.signal()
	select {
	case <-done:
		return t.ran
	case <-ctx.Done():
	}
	if w.control.tasks.withdraw(t) {
		return false
	}
	<-done // it is being run, or the worker just ended
	return t.ran
}

// Tell makes the worker run f on its goroutine between two steps, and does not wait. A worker that
// is stalled runs f when it steps again; a worker that has ended never does. Safe from any
// goroutine.
func (w *Worker) Tell(f func(*Worker)) {
	if w.control.tasks.add(&task{f: func() { f(w) }, done: func() {}}) {
		w.control.wake.signal()
	}
}

// Calls is a set of functions, one for each of several workers. One goroutine waits for all of
// them.
type Calls struct {
	workers []*Worker
	tasks   []task
	left    atomic.Int32 // tasks that have not ended; the last Add pairs with Wait's load: it publishes all results
	last    wakeup       // signalled by the last task
}

// Call makes each worker run f between two steps; a worker that has not been stepped yet runs it
// before its first step. The caller must then call Wait.
func Call(workers []*Worker, f func(i int, w *Worker)) (*Calls, error) {
	c := &Calls{workers: workers, tasks: make([]task, len(workers))}
	if err := c.last.open(); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c.left.Store(int32(len(workers)))
	for i, w := range workers {
		t := &c.tasks[i]
		t.f = func() { f(i, w) }
		t.done = func() {
			if c.left.Add(-1) == 0 {
				c.last.signal()
			}
		}
		if w.control.tasks.add(t) {
			w.control.wake.signal()
		} else {
			c.left.Add(-1)
		}
	}
	return c, nil
}

// Wait waits until all workers have run their function. The last worker wakes the caller's thread
// directly by the eventfd, without the Go scheduler in between. After an error, some functions may
// have run, and no other will.
func (c *Calls) Wait(within time.Duration) error {
	defer c.last.close()
	fds, deadline := []unix.PollFd{c.last.poll()}, time.Now().Add(within)
	for over := false; c.left.Load() > 0; {
		timeout := -1 // the remaining ones are running
		if rest := time.Until(deadline); rest > 0 {
			timeout = int(rest/time.Millisecond) + 1
		} else if !over {
			over = true
			for i, w := range c.workers {
				if w.control.tasks.withdraw(&c.tasks[i]) {
					c.left.Add(-1)
				}
			}
			continue
		}
		_, _ = unix.Poll(fds, timeout) // after EINTR the loop polls again
	}
	for i := range c.tasks {
		if !c.tasks[i].ran {
			return fmt.Errorf("worker %d has ended, or does nothing for %v", c.workers[i].c.ID, within)
		}
	}
	return nil
}
