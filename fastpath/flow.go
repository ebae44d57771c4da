package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// handleFlow finds or makes the flow of a packet and forwards it. p.Tuple and p.hash must be
// complete. f has the results of the lookahead, or is nil.
func (w *Worker) handleFlow(p *packet, f *prepared) decide.Verdict {
	ref, side := w.flows.Lookup(p.hash, &p.Tuple, w.planner.Now)
	p.flow, p.side = ref, side
	var old header.Tuple // towards the backend, of a flow that the new flow replaces
	if ref != 0 {
		if side == flowtable.ClientSide && w.unreliableSYN(p) {
			return w.deliver(p, ref, side)
		}
		if w.fromDirectConnection(p, ref, side) {
			return w.withoutFlow(p)
		}
		if side == flowtable.ClientSide && p.opensConnection() {
			w.countRepeated(ref)
		}
		switch w.classify(ref, side, p) {
		case decide.InFlow:
			if side == flowtable.ClientSide && p.opensConnection() {
				if r := w.limitedAgain(p, ref); r != reason.None {
					return drop(r)
				}
			}
			return w.forward(p, ref, side)
		case decide.BackendGone:
			if w.planner.WithinGrace(ref, &p.Packet) {
				return w.deliver(p, ref, side) // does not refresh the flow
			}
			if side == flowtable.ClientSide && w.reset(p) {
				w.flows.ResetOneSided(ref, w.planner.Now)
			}
			return drop(reason.BackendGone)
		case decide.Unanswered:
			if r := w.limitedAgain(p, ref); r != reason.None {
				return drop(r)
			}
			if w.budget.flows <= opensForParked { // this SYN also goes to the old backend, the next one to another
				return w.forward(p, ref, side)
			}
			w.budget.flows--
			next, v := w.retry(p, ref)
			if next == 0 {
				return v
			}
			return w.forward(p, next, side)
		}
		if !p.kernel && w.parks() {
			return w.park(p)
		}
		w.flows.Outgoing(ref, flowtable.ClientSide, &old)
		w.flows.DeleteFor(ref, replaced(p))
		p.flow = 0
		f = nil // the lookahead prepared it without old
	} else if w.lateAnswer(p) {
		return drop(reason.LateAnswer)
	}
	if p.kernel {
		return w.fromKernel(p)
	}
	if p.Fragment != header.NotFragment && w.planner.Snap.AtNode(&p.Tuple) {
		return toKernel
	}
	midway := !p.opensFlow() && w.mayBeMidway(p)
	switch {
	case midway && (w.parks() || !w.tracks(p)): // tracks computes a checksum
		return w.admitUntracked(p)
	case !midway && !p.opensFlow():
	case w.parks():
		return w.park(p)
	default:
		w.budget.flows--
	}
	ref, v := w.admit(p, &old, f)
	if ref == 0 {
		return v
	}
	if f != nil {
		return w.forwardFirst(p, ref)
	}
	return w.forward(p, ref, flowtable.ClientSide)
}

// classify returns the class of a packet of a flow. A search for an endpoint that may have come
// back counts as a flow that the step opens.
func (w *Worker) classify(ref flowtable.Ref, side flowtable.Side, p *packet) decide.Class {
	left := max(0, w.budget.flows-opensForParked)
	w.planner.Searches = left
	class := w.planner.Classify(ref, side, &p.Packet)
	w.budget.flows -= left - w.planner.Searches
	return class
}

// limitedAgain binds a flow, and then returns decide.Planner.LimitedAgain.
func (w *Worker) limitedAgain(p *packet, ref flowtable.Ref) reason.Drop {
	w.planner.Bind(ref)
	return w.planner.LimitedAgain(ref, &p.Tuple)
}

// replaced returns why the old flow ends when a client's packet opens a new one. A SYN or INIT
// replaces a connection that was over. Any other packet replaces a flow whose node is gone, whose
// backend no longer serves, or whose frontend has another owner.
func replaced(p *packet) flowtable.End {
	if p.opensConnection() {
		return flowtable.EndReopened
	}
	return flowtable.EndEndpointGone
}
