package fastpath

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tasks are functions to run on the worker's goroutine. The worker loads
// one atomic per step; the mutex is taken only when there is something to do.
type tasks struct {
	waiting atomic.Int32 // len(queue), for the worker to see
	mu      sync.Mutex
	queue   []*task
	ended   bool // the worker takes no more
}

type task struct {
	f    func(*Worker)
	done func() // called after f returned, or when the worker ended without it
	ran  bool   // valid from done on
}

// Do runs f on the worker's goroutine between two steps and waits for it: how the
// daemon changes links. It reports false if f did not and will not run, because the worker
// ended or ctx was done first.
func (w *Worker) Do(ctx context.Context, f func(*Worker)) bool {
	done := make(chan struct{})
	t := &task{f: f, done: func() { close(done) }}
	if !w.tasks.add(t) {
		return false
	}
	w.wake.signal()
	select {
	case <-done:
		return t.ran
	case <-ctx.Done():
	}
	if w.tasks.withdraw(t) {
		return false
	}
	<-done // it is being run, or the worker just ended
	return t.ran
}

// Tell makes the worker run f on its goroutine between two steps, and does not wait for that: a
// worker that stands still runs it when it moves again, one that has ended never. Safe from any
// goroutine.
func (w *Worker) Tell(f func(*Worker)) {
	if w.tasks.add(&task{f: f, done: func() {}}) {
		w.wake.signal()
	}
}

// Calls are functions that several workers run, each its own, of which one goroutine waits for all.
type Calls struct {
	workers []*Worker
	tasks   []task
	left    atomic.Int32 // that have not ended; the last store pairs with Wait's load, and publishes all
	last    wakeup       // signalled by the last one
}

// Call makes each worker run f between two steps; one that no runner steps yet before its first.
// Wait must follow.
func Call(workers []*Worker, f func(i int, w *Worker)) (*Calls, error) {
	c := &Calls{workers: workers, tasks: make([]task, len(workers))}
	if err := c.last.open(); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c.left.Store(int32(len(workers)))
	for i, w := range workers {
		t := &c.tasks[i]
		t.f = func(w *Worker) { f(i, w) }
		t.done = func() {
			if c.left.Add(-1) == 0 {
				c.last.signal()
			}
		}
		if w.tasks.add(t) {
			w.wake.signal()
		} else {
			c.left.Add(-1)
		}
	}
	return c, nil
}

// Wait waits until all workers have run theirs. The last one wakes the caller's thread itself, with
// no other thread in between that finds the goroutine. After an error some may have run, and no
// other will.
func (c *Calls) Wait(within time.Duration) error {
	defer c.last.close()
	fds, deadline := []unix.PollFd{c.last.poll()}, time.Now().Add(within)
	for over := false; c.left.Load() > 0; {
		timeout := -1 // they are being run
		if rest := time.Until(deadline); rest > 0 {
			timeout = int(rest/time.Millisecond) + 1
		} else if !over {
			over = true
			for i, w := range c.workers {
				if w.tasks.withdraw(&c.tasks[i]) {
					c.left.Add(-1)
				}
			}
			continue
		}
		_, _ = unix.Poll(fds, timeout) // EINTR: once more
	}
	for i := range c.tasks {
		if !c.tasks[i].ran {
			return fmt.Errorf("worker %d has ended, or does nothing for %v", c.workers[i].c.ID, within)
		}
	}
	return nil
}

func (q *tasks) add(t *task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	q.queue = append(q.queue, t)
	q.waiting.Store(int32(len(q.queue)))
	return true
}

// withdraw removes a task that has not begun.
func (q *tasks) withdraw(t *task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.queue, t)
	if i < 0 {
		return false
	}
	q.queue = slices.Delete(q.queue, i, i+1)
	q.waiting.Store(int32(len(q.queue)))
	return true
}

// run runs the tasks that wait. A task that is added meanwhile is seen in the next step: add
// increments waiting before it wakes the worker.
func (q *tasks) run(w *Worker) {
	if q.waiting.Load() == 0 {
		return
	}
	for _, t := range q.take(false) {
		t.f(w)
		t.ran = true
		t.done()
	}
}

// end releases the callers whose tasks were never run.
func (q *tasks) end() {
	for _, t := range q.take(true) {
		t.done()
	}
}

func (q *tasks) take(last bool) []*task {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.queue
	q.queue, q.ended = nil, last
	q.waiting.Store(0)
	return taken
}
