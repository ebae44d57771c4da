package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/reason"
)

// retryEvery is the minimum time between two lookups for held packets.
const retryEvery = flowtable.Time(time.Millisecond)

// requestEvery is the time between repeated requests: a request is lost if there are too many.
const requestEvery = flowtable.Time(100 * time.Millisecond)

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
	kept, all := q.held[:0], q.held
	for i := range all {
		h := &all[i]
		id := w.planner.View.Lookup(&h.o.dst).Hop
		hop := w.c.Hops.Hop(id)
		if id == 0 || hop == nil || (hop.Kind == nexthop.OnLink && !hop.Ready) {
			if w.planner.Now < h.deadline {
				if ask && (i == 0 || all[i-1].o.dst != h.o.dst || all[i-1].o.precedence < h.o.precedence) {
					w.request(&h.o)
				}
				kept = append(kept, *h)
				continue
			}
			w.countHeld(h.o.desc, -1)
			w.dropped(h.o.desc, reason.NeighbourPending)
			moved++
			continue
		}
		w.countHeld(h.o.desc, -1)
		moved++
		if v := w.sendTo(h.o, id, hop); v.Action == decide.Drop {
			w.dropped(h.o.desc, v.Reason)
		}
	}
	if moved > 0 {
		q.keep(kept)
	}
	return moved
}
