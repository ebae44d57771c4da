package allocate

import (
	"container/list"
	"strings"
)

// fairQueue is a queue of Services (workqueue.Queue). It returns one Service of each namespace in
// turn. So a Service waits for at most one Service of each other namespace per Service of its own.
type fairQueue struct {
	lanes map[string]*list.Element // by namespace; elements of turns
	turns list.List                // of *lane, the next one first
	len   int
}

// lane has the queued keys of a namespace, oldest first. It is in turns while it has any.
type lane struct {
	namespace string
	keys      list.List
}

// Touch implements workqueue.Queue: a Service that is added again keeps its place.
func (*fairQueue) Touch(string) {}

// Len implements workqueue.Queue.
func (q *fairQueue) Len() int { return q.len }

// Push implements workqueue.Queue.
func (q *fairQueue) Push(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	if q.lanes == nil {
		q.lanes = map[string]*list.Element{}
	}
	at := q.lanes[namespace]
	if at == nil {
		at = q.turns.PushBack(&lane{namespace: namespace})
		q.lanes[namespace] = at
	}
	if l, is := at.Value.(*lane); is { // always
		l.keys.PushBack(key)
		q.len++
	}
}

// Pop implements workqueue.Queue. It is not called while Len is 0.
func (q *fairQueue) Pop() string {
	at := q.turns.Front()
	l, _ := at.Value.(*lane)
	key, _ := l.keys.Remove(l.keys.Front()).(string)
	q.len--
	q.turns.MoveToBack(at)
	if l.keys.Len() == 0 {
		q.turns.Remove(at)
		delete(q.lanes, l.namespace)
	}
	return key
}
