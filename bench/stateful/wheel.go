package stateful

// wheel holds the one timer of every connection: slots of a millisecond with intrusive lists. A
// timer that is postponed stays in its slot and is moved when that slot is reached, so postponing
// it with every packet costs one store.
type wheel struct {
	heads []uint32
	now   uint32 // milliseconds; every slot up to it is empty
}

const wheelSlots = 4096

func newWheel(now uint32) wheel { return wheel{heads: make([]uint32, wheelSlots), now: now} }

// arm sets the time at which the connection expires; a time in the past means the next tick.
func (w *wheel) arm(conns []conn, i uint32, deadline uint32) {
	c := &conns[i]
	c.deadline = max(deadline, w.now+1)
	if c.at != 0 && c.at <= c.deadline {
		return
	}
	w.unlink(conns, i)
	w.link(conns, i)
}

func (w *wheel) link(conns []conn, i uint32) {
	c := &conns[i]
	c.at = min(c.deadline, w.now+wheelSlots-1)
	head := &w.heads[c.at%wheelSlots]
	c.next, c.prev = *head, 0
	if *head != 0 {
		conns[*head].prev = i
	}
	*head = i
}

// unlink takes the connection off the wheel, if it is on it.
func (w *wheel) unlink(conns []conn, i uint32) {
	c := &conns[i]
	if c.at == 0 {
		return
	}
	if c.prev != 0 {
		conns[c.prev].next = c.next
	} else {
		w.heads[c.at%wheelSlots] = c.next
	}
	if c.next != 0 {
		conns[c.next].prev = c.prev
	}
	c.at, c.next, c.prev = 0, 0, 0
}

// pop removes one connection from the wheel that is due at now, and advances over empty slots; 0 if
// none is due.
func (w *wheel) pop(conns []conn, now uint32) uint32 {
	for w.now < now {
		i := w.heads[(w.now+1)%wheelSlots]
		if i == 0 {
			w.now++
			continue
		}
		w.unlink(conns, i)
		c := &conns[i]
		switch {
		case c.deadline == 0:
		case c.deadline > w.now+1:
			w.now++ // so that it goes into a later slot, not into this one
			w.link(conns, i)
			w.now--
		default:
			c.deadline = 0
			return i
		}
	}
	return 0
}

// queue is a list that uses the same fields: first in, first out.
type queue struct{ head, tail uint32 }

func (q *queue) push(conns []conn, i uint32) {
	c := &conns[i]
	c.next, c.prev = 0, q.tail
	if q.tail != 0 {
		conns[q.tail].next = i
	} else {
		q.head = i
	}
	q.tail = i
}

func (q *queue) remove(conns []conn, i uint32) {
	c := &conns[i]
	if c.prev != 0 {
		conns[c.prev].next = c.next
	} else {
		q.head = c.next
	}
	if c.next != 0 {
		conns[c.next].prev = c.prev
	} else {
		q.tail = c.prev
	}
	c.next, c.prev = 0, 0
}
