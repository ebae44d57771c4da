package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

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

// unserved drops a packet from outside without a flow or a port: of a protocol that is not
// translated, or an ICMP message other than an echo request or an error. Planner.Rejects is true
// for its destination. A host with that address would answer an unknown protocol with an error (RFC
// 1122 section 3.2.2.1, RFC 8200 section 4) and ignore such ICMP messages (RFC 1122 section 3.2.2,
// RFC 4443 section 2.4 (b)).
func (w *Worker) unserved(p *packet) decide.Verdict {
	known := header.TransportKnown(p.Tuple.Proto, p.Tuple.V6)
	switch {
	case w.planner.Forged(p.Tuple.Src):
		return drop(reason.SpoofedSource)
	case known && p.isICMP():
		return drop(reason.ICMPType)
	case !known && p.Tuple.Proto != header.NoNextHeader && w.planner.Snap.UnservedPort == services.UnservedReject:
		w.sendError(p, nat.ProtocolUnreachable, 0)
	}
	return drop(reason.Protocol)
}
