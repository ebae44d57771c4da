package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/reason"
)

// holdFor is how long a packet waits for the resolution of its next hop: one second, the time
// between two requests of Linux (net.ipv4.neigh.default.retrans_time_ms).
const holdFor = flowtable.Time(time.Second)

// displacedPerStep is how many unproven packets a step holds in place of others. Each needs a
// search of the queue: about 60 us in total with a full queue of 512. More are dropped: they may be
// a flood, and the searches delay packets of known flows.
const displacedPerStep = 16

// mayHold reports whether a queue that holds held packets may take another. limit is in frames: the
// frames beyond the first of each packet, in all queues, reduce it.
func (w *Worker) mayHold(d Desc, held, limit int) bool {
	return held+w.n.heldMore+w.chains.Buffers(d) <= limit
}

// hold keeps a packet until its next hop is known. It requests the hop if the packet is the first
// that waits for it, or has a higher precedence than all that wait. If there are too many packets,
// it evicts one of the lowest precedence. It searches the queue only to evict a packet of a lower
// precedence, or if mayDisplace allows it.
func (w *Worker) hold(o outgoing) decide.Verdict {
	q := &w.hops
	if o.precedence == unproven && q.unprovenFull() {
		if q.mayDisplace == 0 {
			return drop(reason.NeighbourQueueFull)
		}
		q.mayDisplace--
	}
	waiting := q.index.of(&o.dst).waiting
	n := waiting.total()
	if n == 0 || o.precedence > waiting.highest() {
		w.request(&o)
	}
	if n >= q.perHop {
		lowest := waiting.lowest()
		if lowest >= o.precedence {
			return drop(reason.NeighbourQueueFull)
		}
		w.displace(q.oldest(&o.dst, lowest))
	}
	for !w.mayHold(o.desc, len(q.held), cap(q.held)) || o.precedence == unproven && q.unprovenFull() {
		i := q.evictable(o.precedence)
		if i < 0 {
			return drop(reason.NeighbourQueueFull)
		}
		w.displace(i)
	}
	q.add(o, w.planner.Now+holdFor)
	w.countHeld(o.desc, 1)
	return queued
}

// request requests the hop of a packet that is held.
func (w *Worker) request(o *outgoing) {
	if o.precedence == unproven {
		w.c.Hops.Resolve(o.dst)
		return
	}
	w.c.Hops.ResolveFirst(o.dst)
}

// displace drops the held packet at index i.
func (w *Worker) displace(i int) {
	o := w.hops.remove(i)
	w.countHeld(o.desc, -1)
	w.dropped(o.desc, reason.NeighbourDisplaced)
}
