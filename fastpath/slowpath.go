package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// batch has the packets of a batch, in one array per field, so that each pass reads only the fields
// it needs.
type batch struct {
	desc   [BatchSize]Desc
	search [searches]flowtable.Search // of the packets between inspect and finish, by index modulo searches
	link   int                        // all packets came from this link
	kernel bool                       // link is the host link
	fetch  prefetches
	pkt    header.Packet // the current packet's headers
}

func drop(r stats.DropReason) decide.Verdict { return decide.Verdict{Action: decide.Drop, Reason: r} }

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

// parse reads and checks a packet's headers.
func (w *Worker) parse(d Desc, p *header.Packet) stats.DropReason {
	if d.Len != 0 {
		return header.Parse(w.frame(d), p)
	}
	if !w.chains.transmittable(d) {
		*p = header.Packet{}
		return stats.FrameBuffers
	}
	return header.ParseLong(w.frame(d), w.chains.Bytes(d), p)
}

// handleAny decides about a packet of any kind, and carries out the verdict.
func (w *Worker) handleAny(d Desc) {
	p := &w.b.pkt
	if d.Len == 0 { // inspect does not count chains
		w.n.rxBytes += uint64(w.chains.Bytes(d))
	}
	var v decide.Verdict
	if r := w.parse(d, p); r == stats.None {
		v = w.handle(d, p)
	} else {
		v = w.handleFault(d, p, r)
	}
	w.carryOut(d, p, v)
}

func (w *Worker) carryOut(d Desc, p *header.Packet, v decide.Verdict) {
	switch v.Action {
	case decide.Queued:
	case decide.ToKernel:
		if !w.b.kernel && w.planner.Forged(p.Tuple.Src) {
			w.dropped(d, stats.SpoofedSource)
			return
		}
		w.returnToKernel(d, p)
	default:
		w.dropped(d, v.Reason)
	}
}

// handle decides about a packet that parsed. p.Tuple is complete, except for the ports of a later
// fragment.
func (w *Worker) handle(d Desc, p *header.Packet) decide.Verdict {
	switch {
	case p.Multicast:
		return w.withoutFlow(d, p)
	case p.Fragment == header.LaterFragment:
		return w.laterFragment(d, p)
	case isICMP(p):
		return w.icmp(d, p)
	}
	if p.Fragment == header.FirstFragment {
		if r := w.firstFragment(d, p); r != stats.None {
			return drop(r)
		}
	}
	return w.handleFlow(d, p, w.flows.Hash(&p.Tuple), nil)
}

// handleFlow finds or makes the flow of a packet and forwards it. f has the results of the
// lookahead, or is nil.
func (w *Worker) handleFlow(d Desc, p *header.Packet, hash uint64, f *prepared) decide.Verdict {
	ref, side := w.flows.Lookup(hash, &p.Tuple, w.planner.Now)
	w.readSYN(d, p)
	var old header.Tuple // towards the backend, of a flow that the new flow replaces
	if ref != 0 {
		if side == flowtable.ClientSide && w.unreliableSYN(d, p) {
			return w.deliver(d, p, ref, side)
		}
		if w.fromDirectConnection(d, p, ref, side) {
			return w.withoutFlow(d, p)
		}
		switch w.classify(ref, side, p) {
		case decide.InFlow:
			if side == flowtable.ClientSide && p.Tuple.Stateful() && decide.IsSYN(p.TCPFlags) {
				w.planner.Bind(ref)
				if r := w.planner.LimitedAgain(ref, &p.Tuple); r != stats.None {
					return drop(r)
				}
			}
			return w.forward(d, p, ref, side)
		case decide.BackendGone:
			if w.planner.WithinGrace(ref, p) {
				return w.deliver(d, p, ref, side) // does not refresh the flow
			}
			return drop(stats.BackendGone)
		case decide.Unanswered:
			if w.opens <= opensForParked { // this SYN also goes to the old backend, the next one to another
				return w.forward(d, p, ref, side)
			}
			w.opens--
			next, v := w.retry(p, hash, ref)
			if next == 0 {
				return v
			}
			return w.forward(d, p, next, side)
		}
		if !w.b.kernel && w.parks() {
			return w.park(d, hash)
		}
		w.flows.Outgoing(ref, flowtable.ClientSide, &old)
		w.flows.Delete(ref)
		f = nil // the lookahead prepared it without old
	} else if w.lateAnswer(p, hash) {
		return drop(stats.LateAnswer)
	}
	if w.b.kernel {
		return w.fromKernel(d, p)
	}
	if p.Fragment != header.NotFragment && w.planner.Snap.AtNode(&p.Tuple) {
		return toKernel
	}
	if opens(p) {
		if w.parks() {
			return w.park(d, hash)
		}
		w.opens--
	}
	ref, v := w.admit(d, p, &old, f)
	if ref == 0 {
		return v
	}
	if f != nil {
		return w.forwardFirst(d, p, ref)
	}
	return w.forward(d, p, ref, flowtable.ClientSide)
}

// classify returns the class of a packet of a flow. A search for an endpoint that may have come
// back counts as a flow that the step opens.
func (w *Worker) classify(ref flowtable.Ref, side flowtable.Side, p *header.Packet) decide.Class {
	left := max(0, w.opens-opensForParked)
	w.planner.Searches = left
	class := w.planner.Classify(ref, side, p)
	w.opens -= left - w.planner.Searches
	return class
}

// withoutFlow decides about a packet that was steered to the worker and belongs to no flow. A
// packet from outside goes to the kernel, unless the kernel would route it back (Planner.Rejects).
// A packet from the kernel goes to its next hop.
func (w *Worker) withoutFlow(d Desc, p *header.Packet) decide.Verdict {
	switch {
	case !w.b.kernel && w.planner.Rejects(p.Tuple.Dst):
		return w.unserved(d, p)
	case !w.b.kernel:
		return toKernel
	case p.Multicast:
		return drop(stats.HostLinkOther)
	}
	return w.fromKernel(d, p)
}

// handleFault decides about a packet that did not parse. Packets of protocols that are not
// translated go to withoutFlow: they are steered here if they are for a routed address, fragments
// to an address that the node shares, or from an endpoint on the node. All other packets are
// dropped. The kernel's own packets on the host link (neighbour discovery, multicast) are counted
// separately from malformed packets.
func (w *Worker) handleFault(d Desc, p *header.Packet, r stats.DropReason) decide.Verdict {
	if (r == stats.Protocol || r == stats.SCTPFragment) && p.Fragment == header.FirstFragment && p.Tuple.V6 {
		w.firstFragment(d, p) // later fragments may not name the transport protocol
	}
	switch {
	case r == stats.Protocol:
		return w.withoutFlow(d, p)
	case r == stats.SCTPFragment:
		return w.sctpFragment(d, p)
	case w.b.kernel && (p.Multicast || r == stats.EtherType):
		return drop(stats.HostLinkOther)
	case r == stats.FrameTruncated:
		w.notePiece(d)
	}
	return drop(r)
}

// fromKernel forwards a packet from the host link that belongs to no flow: the egress program
// matches on addresses alone and may redirect other packets. The packet leaves as the kernel would
// have sent it.
func (w *Worker) fromKernel(d Desc, p *header.Packet) decide.Verdict {
	route := w.planner.View.Lookup(&p.Tuple.Dst)
	if route.Kind != nexthop.OnLink {
		return drop(stats.HostLinkOther)
	}
	return w.send(outgoing{d, p.L3, p.End, p.Tuple.V6, !p.DF, p.Tuple.Dst, unproven}, route.Hop)
}

func isICMP(p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoICMP || p.Tuple.Proto == header.ProtoICMPv6
}
