package group

// queue is first in, first out. Its memory does not shrink.
type queue[T any] struct {
	list []T
	head int
}

func (q *queue[T]) len() int { return len(q.list) - q.head }

func (q *queue[T]) push(v T) {
	if q.head > len(q.list)/2 { // amortized: at most one value moves for each that was popped
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	q.list = append(q.list, v)
}

func (q *queue[T]) pop() (v T, ok bool) {
	if q.head == len(q.list) {
		return v, false
	}
	v = q.list[q.head]
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return v, true
}
