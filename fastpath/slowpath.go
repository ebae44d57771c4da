package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// batch has the packets of a batch, in one array per field, so that each pass reads only the fields
// it needs.
type batch struct {
	desc   [BatchSize]Desc
	search [searches]flowtable.Search // of the packets between inspect and finish, by index modulo searches
	origin                            // of all packets
	fetch  prefetches
	pkt    packet // the current packet, unless the lookahead parsed it
}

func drop(r reason.Drop) decide.Verdict { return decide.Verdict{Action: decide.Drop, Reason: r} }

var (
	queued   = decide.Verdict{Action: decide.Queued}
	toKernel = decide.Verdict{Action: decide.ToKernel}
)

// frame returns the bytes of a packet's first buffer. Its capacity is its length, so no append can
// write into the next frame.
func (w *Worker) frame(d Desc) []byte {
	end := d.Addr + uint64(d.Len)
	if d.Len == 0 {
		end = d.Addr + uint64(w.chains.First(d))
	}
	return w.mem[d.Addr:end:end]
}

// handleAny decides about a packet of any kind, and carries out the verdict.
func (w *Worker) handleAny(d Desc) {
	p := &w.b.pkt
	var v decide.Verdict
	if r := w.parse(p, d); r == reason.None {
		v = w.handle(p)
	} else {
		v = w.handleFault(p, r)
	}
	if p.long() { // inspect does not count chains
		w.n.rxBytes += uint64(p.bytes)
	}
	w.carryOut(p, v)
}

func (w *Worker) carryOut(p *packet, v decide.Verdict) {
	switch v.Action {
	case decide.Queued:
	case decide.ToKernel:
		if !p.kernel && w.planner.Forged(p.Tuple.Src) {
			w.dropped(p.desc, reason.SpoofedSource)
			return
		}
		w.returnToKernel(p)
	default:
		w.dropped(p.desc, v.Reason)
	}
}

// handle decides about a packet that parsed. p.Tuple is complete, except for the ports of a later
// fragment.
func (w *Worker) handle(p *packet) decide.Verdict {
	switch {
	case p.Multicast:
		return w.withoutFlow(p)
	case p.Fragment == header.LaterFragment:
		return w.laterFragment(p)
	case p.isICMP():
		return w.icmp(p)
	}
	if p.Fragment == header.FirstFragment {
		if r := w.firstFragment(p); r != reason.None {
			return drop(r)
		}
	}
	p.hash = w.flows.Hash(&p.Tuple)
	return w.handleFlow(p, nil)
}

// handleFlow finds or makes the flow of a packet and forwards it. p.Tuple and p.hash must be
// complete. f has the results of the lookahead, or is nil.
func (w *Worker) handleFlow(p *packet, f *prepared) decide.Verdict {
	ref, side := w.flows.Lookup(p.hash, &p.Tuple, w.planner.Now)
	var old header.Tuple // towards the backend, of a flow that the new flow replaces
	if ref != 0 {
		if side == flowtable.ClientSide && w.unreliableSYN(p) {
			return w.deliver(p, ref, side)
		}
		if w.fromDirectConnection(p, ref, side) {
			return w.withoutFlow(p)
		}
		switch w.classify(ref, side, p) {
		case decide.InFlow:
			if side == flowtable.ClientSide && p.opensConnection() {
				w.planner.Bind(ref)
				if r := w.planner.LimitedAgain(ref, &p.Tuple); r != reason.None {
					return drop(r)
				}
			}
			return w.forward(p, ref, side)
		case decide.BackendGone:
			if w.planner.WithinGrace(ref, &p.Packet) {
				return w.deliver(p, ref, side) // does not refresh the flow
			}
			return drop(reason.BackendGone)
		case decide.Unanswered:
			if w.opens <= opensForParked { // this SYN also goes to the old backend, the next one to another
				return w.forward(p, ref, side)
			}
			w.opens--
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
		w.flows.Delete(ref)
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
	if p.opensFlow() {
		if w.parks() {
			return w.park(p)
		}
		w.opens--
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
	left := max(0, w.opens-opensForParked)
	w.planner.Searches = left
	class := w.planner.Classify(ref, side, &p.Packet)
	w.opens -= left - w.planner.Searches
	return class
}

// withoutFlow decides about a packet that was steered to the worker and belongs to no flow. A
// packet from outside goes to the kernel, unless the kernel would route it back (Planner.Rejects).
// A packet from the kernel goes to its next hop.
func (w *Worker) withoutFlow(p *packet) decide.Verdict {
	switch {
	case !p.kernel && w.planner.Rejects(p.Tuple.Dst):
		return w.unserved(p)
	case !p.kernel:
		return toKernel
	case p.Multicast:
		return drop(reason.HostLinkOther)
	}
	return w.fromKernel(p)
}

// handleFault decides about a packet that did not parse. Packets of protocols that are not
// translated go to withoutFlow: they are steered here if they are for a routed address, fragments
// to an address that the node shares, or from an endpoint on the node. All other packets are
// dropped. The kernel's own packets on the host link (neighbour discovery, multicast) are counted
// separately from malformed packets.
func (w *Worker) handleFault(p *packet, r reason.Drop) decide.Verdict {
	if (r == reason.Protocol || r == reason.SCTPFragment) && p.Fragment == header.FirstFragment && p.Tuple.V6 {
		w.firstFragment(p) // later fragments may not name the transport protocol
	}
	switch {
	case r == reason.Protocol:
		return w.withoutFlow(p)
	case r == reason.SCTPFragment:
		return w.sctpFragment(p)
	case p.kernel && (p.Multicast || r == reason.EtherType):
		return drop(reason.HostLinkOther)
	case r == reason.FrameTruncated:
		w.notePiece(p)
	}
	return drop(r)
}

// fromKernel forwards a packet from the host link that belongs to no flow: the egress program
// matches on addresses alone and may redirect other packets. The packet leaves as the kernel would
// have sent it.
func (w *Worker) fromKernel(p *packet) decide.Verdict {
	route := w.planner.View.Lookup(&p.Tuple.Dst)
	if route.Kind != nexthop.OnLink {
		return drop(reason.HostLinkOther)
	}
	return w.send(p.outgoing(&p.Tuple.Dst, unproven), route.Hop)
}
