package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// holdFor is how long a packet waits for its next hop to be resolved: one second,
// in which Linux sends one request (net.ipv4.neigh.default.retrans_time_ms).
const holdFor = flowtable.Time(time.Second)

// retryEvery paces the retries for held packets.
const retryEvery = flowtable.Time(time.Millisecond)

// requestEvery paces repeated requests: one may have been lost if there were too many.
const requestEvery = flowtable.Time(100 * time.Millisecond)

// hopQueue holds translated packets whose next hop is not known yet, oldest first.
type hopQueue struct {
	held      []heldPacket // capacity is fixed
	perHop    int
	retryAt   flowtable.Time
	requestAt flowtable.Time
}

type heldPacket struct {
	o        outgoing
	deadline flowtable.Time
}

func newHopQueue(limit, perHop int) hopQueue {
	return hopQueue{held: make([]heldPacket, 0, limit), perHop: perHop}
}

func (q *hopQueue) len() int { return len(q.held) }

func (q *hopQueue) waitingFor(dst *header.Addr) (n int) {
	for i := range q.held {
		if q.held[i].o.dst == *dst {
			n++
		}
	}
	return n
}

// mayHold reports whether a queue with a limit takes a packet. The limit is one of frames: frames
// beyond the first of each packet, in all queues, reduce it.
func (w *Worker) mayHold(d Desc, held, limit int) bool {
	return held+w.n.heldMore+w.chains.Buffers(d) <= limit
}

// hold keeps a packet until its next hop is known, and requests the hop.
func (w *Worker) hold(o outgoing) decide.Verdict {
	q := &w.hops
	waiting := q.waitingFor(&o.dst)
	if waiting == 0 {
		w.c.Hops.Resolve(o.dst)
	}
	if !w.mayHold(o.desc, len(q.held), cap(q.held)) || waiting >= q.perHop {
		return drop(stats.NeighbourQueueFull)
	}
	q.held = append(q.held, heldPacket{o, w.planner.Now + holdFor})
	w.countHeld(o.desc, 1)
	return queued
}

// release looks up again the next hops of held packets and the first
// fragments of held later ones. It returns how many packets moved.
func (w *Worker) release() int {
	return w.releaseHops() + w.releaseFragments()
}

func (w *Worker) releaseHops() (moved int) {
	q := &w.hops
	if len(q.held) == 0 || w.planner.Now < q.retryAt {
		return 0
	}
	q.retryAt = w.planner.Now + retryEvery
	ask := w.planner.Now >= q.requestAt
	if ask {
		q.requestAt = w.planner.Now + requestEvery
	}
	kept := q.held[:0]
	all := q.held
	for i := range all {
		h := &all[i]
		id := w.planner.View.Lookup(&h.o.dst).Hop
		hop := w.c.Hops.Hop(id)
		if id == 0 || hop == nil || (hop.Kind == nexthop.OnLink && !hop.Ready) {
			if w.planner.Now < h.deadline {
				if ask && (i == 0 || all[i-1].o.dst != h.o.dst) {
					w.c.Hops.Resolve(h.o.dst)
				}
				kept = append(kept, *h)
				continue
			}
			w.countHeld(h.o.desc, -1)
			w.dropped(h.o.desc, stats.NeighbourPending)
			moved++
			continue
		}
		w.countHeld(h.o.desc, -1)
		moved++
		if v := w.sendTo(h.o, id, hop); v.Action == decide.Drop {
			w.dropped(h.o.desc, v.Reason)
		}
	}
	q.held = kept
	return moved
}
