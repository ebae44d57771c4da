package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// handleAny decides about a packet of any kind, and carries out the verdict.
func (w *Worker) handleAny(d Desc) {
	p := &w.b.pkt
	var v decide.Verdict
	r := w.parse(p, d, w.b.origin)
	if w.tap != nil {
		w.tapBegin(p)
	}
	if r == reason.None {
		v = w.handle(p)
	} else {
		v = w.handleFault(p, r)
	}
	if p.long() { // inspect does not count chains
		w.n.rxBytes += uint64(p.bytes)
	}
	w.carryOut(p, v)
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
		w.pieces.note(p, w.pool.frameSize)
	}
	return drop(r)
}
