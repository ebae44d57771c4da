package allocate

import (
	"container/list"
	"strings"
)

// fairQueue is a queue of Services, as a workqueue.Queue. It returns one of each namespace in turn,
// so that one namespace's Services wait for one of each other namespace at most, however many of
// those there are.
type fairQueue struct {
	lanes map[string]*list.Element // by namespace; of turns
	turns list.List                // of *lane, the next one first
	len   int
}

// lane has the keys of a namespace, the first to be returned first. It is in the queue while it has
// any.
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
	if l, is := at.Value.(*lane); is { // turns has nothing else
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
