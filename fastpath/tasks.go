package fastpath

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
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
	done chan struct{} // closed after f returned, or when the worker ended without it
	ran  bool          // valid once done is closed
}

// Do runs f on the worker's goroutine between two steps and waits for it: how the
// daemon changes links. It reports false if f did not and will not run, because the worker
// ended or ctx was done first.
func (w *Worker) Do(ctx context.Context, f func(*Worker)) bool {
	t := &task{f: f, done: make(chan struct{})}
	if !w.tasks.add(t) {
		return false
	}
	w.wake.signal()
	select {
	case <-t.done:
		return t.ran
	case <-ctx.Done():
	}
	if w.tasks.withdraw(t) {
		return false
	}
	<-t.done // it is being run, or the worker just ended
	return t.ran
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
		close(t.done)
	}
}

// end releases the callers whose tasks were never run.
func (q *tasks) end() {
	for _, t := range q.take(true) {
		close(t.done)
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
