// Package duequeue is a queue of values that are due at a time.
package duequeue

import (
	"container/heap"
	"time"
)

// Timer holds the place of a value in a Queue. The value embeds it. The zero value is in no queue.
// A value is in at most one queue.
type Timer struct {
	due   time.Time
	place int // position in the heap, from 1 on; 0: not queued
}

// Due returns the time at which the value is due, or was due when it left the queue.
func (t *Timer) Due() time.Time { return t.due }

func (t *Timer) timer() *Timer { return t }

// Queued is a pointer to a value that embeds a Timer.
type Queued interface{ timer() *Timer }

// Queue holds values, the earliest first. The zero value is empty. It is not safe for concurrent
// use.
type Queue[Q Queued] struct{ list list[Q] }

// Schedule sets the time at which a value is due, and adds it to the queue if it is not there.
func (q *Queue[Q]) Schedule(x Q, due time.Time) {
	t := x.timer()
	t.due = due
	if t.place != 0 {
		heap.Fix(&q.list, t.place-1)
		return
	}
	heap.Push(&q.list, x)
}

// First returns the value that is due first; false if there is none.
func (q *Queue[Q]) First() (first Q, ok bool) {
	if len(q.list) == 0 {
		return first, false
	}
	return q.list[0], true
}

// Remove takes a value out of the queue, if it is there.
func (q *Queue[Q]) Remove(x Q) {
	if place := x.timer().place; place != 0 {
		heap.Remove(&q.list, place-1)
	}
}

// All calls f for each value, in no order. f must not change the queue.
func (q *Queue[Q]) All(f func(Q)) {
	for _, x := range q.list {
		f(x)
	}
}

// list implements heap.Interface.
type list[Q Queued] []Q

func (l list[Q]) Len() int           { return len(l) }
func (l list[Q]) Less(i, j int) bool { return l[i].timer().due.Before(l[j].timer().due) }
func (l list[Q]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].timer().place, l[j].timer().place = i+1, j+1
}

// Push implements heap.Interface.
func (l *list[Q]) Push(x any) {
	*l = append(*l, x.(Q))
	(*l)[len(*l)-1].timer().place = len(*l)
}

// Pop implements heap.Interface.
func (l *list[Q]) Pop() any {
	var none Q
	last := len(*l) - 1
	x := (*l)[last]
	x.timer().place = 0
	(*l)[last] = none
	*l = (*l)[:last]
	return x
}
