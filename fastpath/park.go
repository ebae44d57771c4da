package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/nat/reason"
)

// parks reports whether packets that open flows are parked now.
func (w *Worker) parks() bool { return w.budget.flows == 0 || w.parked.count > 0 && !w.budget.emptying }

// park keeps a packet that would open a flow for a later step. If there is no room, it drops older
// parked packets.
func (w *Worker) park(p *packet) decide.Verdict {
	q := &w.parked
	for q.tail-q.head == uint64(len(q.slots)) || !w.mayHold(p.desc, q.count, len(q.slots)) {
		if q.count == 0 { // other queues hold too many frames
			return drop(reason.NewFlowDisplaced)
		}
		oldest := q.shift().desc
		w.countHeld(oldest, -1)
		w.dropped(oldest, reason.NewFlowDisplaced)
	}
	q.add(p.desc, p.hash, p.link)
	w.countHeld(p.desc, 1)
	if w.tap != nil {
		w.tapWait(p)
	}
	return queued
}
