package fastpath

import (
	"slices"
	"sync"
	"sync/atomic"
)

// tasks is a queue of functions for the worker's goroutine to run. Each step loads one atomic; the
// worker takes the mutex only if there is a task.
type tasks struct {
	waiting atomic.Int32 // len(queue), which the worker loads without the mutex
	mu      sync.Mutex
	queue   []*task
	ended   bool // the worker takes no more tasks
}

type task struct {
	f    func()
	done func() // called after f has returned, or when the worker has ended without running f
	ran  bool   // f has run; valid when done is called
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

// run runs the queued tasks. The next step sees a task that is added meanwhile: add stores waiting
// before it wakes the worker.
func (q *tasks) run() {
	if q.waiting.Load() == 0 {
		return
	}
	for _, t := range q.take(false) {
		t.f()
		t.ran = true
		t.done()
	}
}

// end releases the callers of tasks that have not run.
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
