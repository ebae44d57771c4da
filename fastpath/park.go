package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// A packet of a known flow costs some 50 ns, one that opens a flow some 0.6 us, and 1.4 us where
// the flow before it must be found and ended (BenchmarkStep, BenchmarkConnection). So a step has a
// budget of flows to open, or a flood of SYNs would be a flood of long steps, and the receive rings
// of known flows would overflow meanwhile.
//
// A packet that would open a flow is parked once the budget is spent, and behind others that are
// parked. Each step judges the received packets first and then, by what is left of its budget, the
// parked ones, oldest first. So known flows never wait for new ones, and new ones wait in the order
// in which they came. Where there is no room, the oldest is dropped: it has the least time left
// before its sender repeats it.
const (
	// OpensPerStep is the most flows that a step opens: about 50 us.
	OpensPerStep = 32
	// opensPerFullStep is for a step that got all the packets that fit a batch: more wait, and the
	// worker must keep up with those of known flows. 20,000 such steps a second still open 320,000
	// flows.
	opensPerFullStep = groupSize
	// probesPerOpen is how many source ports cost as much of the budget as a flow, beyond the first
	// freeProbes. Towards a backend whose ports are all taken, 64 are probed in vain, some 30 times
	// the work for a flow.
	probesPerOpen = 2
	freeProbes    = 32
	// comparedPerOpen is how many backends that a scheduler compares (lc, wlc, sed, nq) cost as
	// much of the budget as a flow: 4 to 6 ns each.
	comparedPerOpen = 128
	// opensForParked is what received packets of known flows leave of it: repetitions that take
	// their flows to other backends (retry), and searches for an endpoint that is gone (classify).
	opensForParked = opensPerFullStep / 2
	// maxParked bounds the parked packets. A quarter of the UMEM's frames may be parked: the rings
	// need the others. With one interface and the host link that is as many as the receive ring
	// holds, 2,048 by default. A step opens at least opensForParked of them, so a packet waits for
	// 256 steps then where ports are not short.
	maxParked = 4096
)

// parkedQueue is a ring of packets that wait to open their flow. Positions count all that were ever
// parked; 0 is none.
//
//	head ─► oldest ... youngest ◄─ tail
//	          └─ next ─► of the same bucket
//
// All that wait for one flow leave with the first of them, or those that arrive after it was opened
// would overtake them. They are found by the chain of their bucket.
type parkedQueue struct {
	slots      []parkedPacket // a power of two
	last       []uint64       // by hash: as many buckets as slots
	head, tail uint64
	count      int // of packets; slots between head and tail may be empty
}

type parkedPacket struct {
	desc Desc
	hash uint64
	next uint64 // the next position of this bucket
	here bool
}

func newParkedQueue(frames int) parkedQueue {
	limit := 1
	for 2*limit <= min(maxParked, frames/4) {
		limit *= 2
	}
	return parkedQueue{slots: make([]parkedPacket, limit), last: make([]uint64, limit), head: 1, tail: 1}
}

func (q *parkedQueue) len() int                     { return q.count }
func (q *parkedQueue) slot(at uint64) *parkedPacket { return &q.slots[at&uint64(len(q.slots)-1)] }

// add puts a packet at the end. There must be a free slot.
func (q *parkedQueue) add(d Desc, hash uint64) {
	*q.slot(q.tail) = parkedPacket{desc: d, hash: hash, here: true}
	last := &q.last[hash&uint64(len(q.last)-1)]
	if *last >= q.head {
		q.slot(*last).next = q.tail
	}
	*last = q.tail
	q.tail++
	q.count++
}

// shift takes the oldest packet; there must be one.
func (q *parkedQueue) shift() *parkedPacket {
	for {
		p := q.slot(q.head)
		q.head++
		if p.here {
			p.here = false
			q.count--
			return p
		}
	}
}

// take moves the oldest packets of so many flows to a batch, each followed by the others of its
// flow, and returns their number.
func (q *parkedQueue) take(batch []Desc, flows int) (n int) {
	for ; flows > 0 && q.count > 0 && n < len(batch); flows-- {
		first := q.shift()
		batch[n] = first.desc
		n++
		for at := first.next; at != 0 && n < len(batch); {
			p := q.slot(at)
			if at = p.next; !p.here || p.hash != first.hash {
				continue
			}
			batch[n], p.here = p.desc, false
			n++
			q.count--
		}
	}
	return n
}

// opens reports whether a packet without a flow may open one.
func opens(p *header.Packet) bool { return !p.Tuple.Stateful() || decide.IsSYN(p.TCPFlags) }

// parks reports whether packets that open flows are parked now.
func (w *Worker) parks() bool { return w.opens == 0 || w.parked.count > 0 && !w.opening }

// received bounds the flows of a step that took n packets from a link.
func (w *Worker) received(n int) {
	if n == w.take {
		w.opens = min(w.opens, opensPerFullStep)
	}
}

// handleOrPark judges a plain packet that seems to have no flow while packets are parked: it would
// be a waste to look ahead.
func (w *Worker) handleOrPark(d Desc, s *flowtable.Search) {
	p := &w.b.pkt
	if w.parse(d, p) != stats.None {
		w.handleAny(d)
		return
	}
	w.carryOut(d, p, w.handleFlow(d, p, s.Hash(), nil))
}

// park keeps a packet that would open a flow for a later step, in place of older ones where there
// is no room.
func (w *Worker) park(d Desc, hash uint64) decide.Verdict {
	q := &w.parked
	for q.tail-q.head == uint64(len(q.slots)) || !w.mayHold(d, q.count, len(q.slots)) {
		if q.count == 0 { // other queues hold too many frames
			return drop(stats.NewFlowDisplaced)
		}
		oldest := q.shift().desc
		w.countHeld(oldest, -1)
		w.dropped(oldest, stats.NewFlowDisplaced)
	}
	q.add(d, hash)
	w.countHeld(d, 1)
	return queued
}

// openParked judges parked packets by what is left of the step's budget, and returns how many there
// were. They pass the pipeline once more, so that new flows are looked ahead for (lookahead.go).
func (w *Worker) openParked() (moved int) {
	w.opening = true
	for w.parked.count > 0 && w.opens > 0 {
		n := w.parked.take(w.b.desc[:], w.opens)
		for _, d := range w.b.desc[:n] {
			w.countHeld(d, -1)
		}
		w.b.kernel = false // none of the host link's opens a flow
		bytes := w.n.rxBytes
		w.handleBatch(n)
		w.n.rxBytes = bytes // they were counted when they came
		w.transmit()
		moved += n
	}
	w.opening = false
	return moved
}
