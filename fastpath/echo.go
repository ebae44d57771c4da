package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
)

func echoRequest(v6 bool) uint8 {
	if v6 {
		return header.ICMPv6EchoRequest
	}
	return header.ICMPEchoRequest
}

// echoes reports whether the worker answers an echo request. Fragments of one to an address of the
// node go to the kernel, which reassembles them.
func (w *Worker) echoes(p *header.Packet) bool {
	if w.b.kernel {
		return false
	}
	dst := p.Tuple.Dst
	return w.planner.Snap.Routed(dst) ||
		p.Fragment == header.NotFragment && w.planner.Snap.Owned(dst)&services.AddrVIP != 0
}

// echo answers an unfragmented echo request.
func (w *Worker) echo(d Desc, p *header.Packet) decide.Verdict {
	if w.planner.Forged(p.Tuple.Src) {
		return drop(stats.SpoofedSource)
	}
	if !w.checksumICMP(d, p) {
		return drop(stats.ICMPChecksum)
	}
	return w.reflect(d, p)
}

// echoFragment answers a fragment of an echo request with the same fragment of the reply. A reply
// differs from its request only in addresses, TTL, type, and a checksum that follows from the type,
// so no fragment depends on another. A wrong checksum stays wrong.
func (w *Worker) echoFragment(d Desc, p *header.Packet) decide.Verdict {
	if w.planner.Forged(p.Tuple.Src) {
		return drop(stats.SpoofedSource)
	}
	return w.reflect(d, p)
}

// reflect turns an echo request, or a fragment of one, into its reply and sends it back. The
// fragments of a reply keep the request's identification: the gateway sends that client no other
// fragmented ICMP datagrams.
func (w *Worker) reflect(d Desc, p *header.Packet) decide.Verdict {
	nat.EchoReply(w.frame(d), p, w.c.TTL)
	w.n.echoReplies++
	dst := p.Tuple.Src
	return w.send(outgoing{d, p.L3, p.End, p.Tuple.V6, !p.DF && !p.Tuple.V6, dst, unproven},
		w.planner.View.Lookup(&dst).Hop)
}

// firstICMP decides about the first fragment of an ICMP message. It records the message's type,
// which later fragments need, in place of the destination port.
func (w *Worker) firstICMP(d Desc, p *header.Packet) decide.Verdict {
	p.Tuple.DstPort = uint16(p.ICMPType)
	r := w.firstFragment(d, p)
	if p.ICMPType != echoRequest(p.Tuple.V6) || !w.echoes(p) {
		return w.withoutFlow(d, p)
	}
	if r != stats.None {
		return drop(r)
	}
	return w.echoFragment(d, p)
}

// laterICMP decides about a later fragment of an ICMP message, by the recorded type.
func (w *Worker) laterICMP(d Desc, p *header.Packet, f fragment.First) decide.Verdict {
	if f.Dst == uint16(echoRequest(p.Tuple.V6)) && w.echoes(p) {
		return w.echoFragment(d, p)
	}
	return w.withoutFlow(d, p)
}
