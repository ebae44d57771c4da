package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

func echoRequest(v6 bool) uint8 {
	if v6 {
		return header.ICMPv6EchoRequest
	}
	return header.ICMPEchoRequest
}

// echoes reports whether the worker answers an echo request. Fragments of one to an address of the
// node go to the kernel, which reassembles them.
func (w *Worker) echoes(p *packet) bool {
	if p.kernel {
		return false
	}
	dst := p.Tuple.Dst
	return w.planner.Snap.Routed(dst) ||
		p.Fragment == header.NotFragment && w.planner.Snap.Owned(dst)&services.AddrVIP != 0
}

// echo answers an unfragmented echo request.
func (w *Worker) echo(p *packet) decide.Verdict {
	if w.planner.Forged(p.Tuple.Src) {
		return drop(reason.SpoofedSource)
	}
	if !header.ChecksumLongICMP(p.frame, &p.Packet, w.restSum(p)) {
		return drop(reason.ICMPChecksum)
	}
	return w.reflect(p)
}

// echoFragment answers a fragment of an echo request with the same fragment of the reply. A reply
// differs from its request only in addresses, TTL, type, and a checksum that follows from the type,
// so no fragment depends on another. A wrong checksum stays wrong.
func (w *Worker) echoFragment(p *packet) decide.Verdict {
	if w.planner.Forged(p.Tuple.Src) {
		return drop(reason.SpoofedSource)
	}
	return w.reflect(p)
}

// reflect turns an echo request, or a fragment of one, into its reply and sends it back. The
// fragments of a reply keep the request's identification: the gateway sends that client no other
// fragmented ICMP datagrams.
func (w *Worker) reflect(p *packet) decide.Verdict {
	nat.EchoReply(p.frame, &p.Packet, w.c.TTL)
	w.n.echoReplies++
	return w.send(p.outgoing(&p.Tuple.Src, unproven), w.planner.View.Lookup(&p.Tuple.Src).Hop)
}

// laterICMP decides about a later fragment of an ICMP message, by the recorded type.
func (w *Worker) laterICMP(p *packet, f fragment.First) decide.Verdict {
	if f.Dst == uint16(echoRequest(p.Tuple.V6)) && w.echoes(p) {
		return w.echoFragment(p)
	}
	return w.withoutFlow(p)
}
