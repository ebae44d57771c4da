package fastpath

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// times returns the times of a flow's backend to count in, or nil.
func (w *Worker) times(ref flowtable.Ref) *stats.BackendTimes {
	return w.stats.Times.Count(services.BackendRef(w.flows.Flow(ref).BackendRef()).Index())
}

// observe updates a flow by one of its packets, and counts the wait that the packet ends. It
// reports whether this packet makes the flow assured.
func (w *Worker) observe(ref flowtable.Ref, side flowtable.Side, s flowtable.Segment) (assured bool) {
	assured = w.flows.Observe(ref, side, s, w.planner.Now)
	if o := w.flows.Observed(); o.Wait != flowtable.NoWait || o.Reset {
		w.countObserved(ref, side, o)
	}
	return assured
}

func (w *Worker) countObserved(ref flowtable.Ref, side flowtable.Side, o *flowtable.Observed) {
	t := w.times(ref)
	switch {
	case t == nil:
	case o.Wait == flowtable.Handshake:
		t.Handshake.Add(o.Elapsed)
	case o.Wait == flowtable.Answer:
		t.Answer.Add(o.Elapsed)
	case side == flowtable.ReplySide:
		t.ResetByBackend.Add(1)
	default:
		t.ResetByClient.Add(1)
	}
}

// countRepeated counts a client's SYN or INIT that finds its flow. If the network has duplicated
// the packet, the copy counts, too.
func (w *Worker) countRepeated(ref flowtable.Ref) {
	state := w.flows.Flow(ref).State()
	if state != flowtable.SynSeen && state != flowtable.SynRecv {
		return
	}
	switch t := w.times(ref); {
	case t == nil:
	case state == flowtable.SynSeen:
		t.RepeatedSYNs.Add(1)
	default:
		t.RepeatedAfter.Add(1)
	}
}

// countFirst counts the first answer of a backend to a SYN as refused or answered, even if the
// answer is dropped later. If two workers receive an answer at once, both may count it.
func (w *Worker) countFirst(ref flowtable.Ref, flags uint8) {
	c := w.stats.Backends.At(services.BackendRef(w.flows.Flow(ref).BackendRef()).Index())
	switch {
	case c == nil:
	case flags&header.TCPRST != 0:
		c.Refused.Add(1)
		if t := w.times(ref); t != nil {
			t.Refused.Add(1)
		}
	default:
		c.Answered.Add(1)
	}
}
