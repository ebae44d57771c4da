package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// icmp decides about ICMP and ICMPv6: errors about known flows are translated, echo requests to a
// VIP are answered, all other messages go to withoutFlow.
func (w *Worker) icmp(p *packet) decide.Verdict {
	switch {
	case p.Fragment == header.FirstFragment:
		return w.firstICMP(p)
	case header.IsRedirectOrQuench(p.Tuple.V6, p.ICMPType):
		return w.withoutFlow(p)
	case header.IsICMPError(p.Tuple.V6, p.ICMPType):
		return w.icmpError(p)
	case p.ICMPType == echoRequest(p.Tuple.V6) && w.echoes(p):
		return w.echo(p)
	}
	return w.withoutFlow(p)
}

// icmpError translates an error about a packet that the gateway forwarded (RFC 5508 section 4). The
// reverse of the embedded packet's tuple is the tuple of an answer, which finds the flow. The error
// never refreshes or ends the flow (REQ-6).
func (w *Worker) icmpError(p *packet) decide.Verdict {
	if !header.ChecksumLongICMP(p.frame, &p.Packet, w.restSum(p)) {
		return drop(reason.ICMPChecksum)
	}
	var inner header.Packet
	if r := header.ParseInner(p.frame, &p.Packet, &inner); r != reason.None {
		return drop(r)
	}
	if inner.Tuple.Src != p.Tuple.Dst || inner.Fragment == header.LaterFragment {
		return w.icmpNoFlow(p)
	}
	key := inner.Tuple.Reverse()
	ref, side := w.flows.Lookup(w.flows.Hash(&key), &key, w.planner.Now)
	direct := ref != 0 && w.flows.Direct(ref)
	switch {
	case direct && side == flowtable.ReplySide:
		return w.withoutFlow(p) // as in deliverDirect
	case ref == 0 || direct:
		if v, handled := w.icmpErrorDirect(p, ref, &key); handled {
			return v
		}
		return w.icmpNoFlow(p)
	}
	p.flow, p.side = ref, side
	if p.TTL <= 1 {
		return drop(reason.TTLExceeded) // no error about an error (RFC 1122 section 3.2.2)
	}
	if mtu, ok := header.PathMTU(p.frame, &p.Packet); ok {
		if r := w.checkPathMTU(mtu, nat.QuotedBytes(p.frame, &inner), &inner, side); r != reason.None {
			return drop(r)
		}
	}
	w.planner.Bind(ref)
	f := w.flows.Flow(ref)
	var out header.Tuple
	w.flows.Outgoing(ref, side, &out)
	innerOut := out.Reverse()
	nat.DecrementTTL(p.frame, &p.Packet)
	if f.Proxied() {
		w.insertedQuote(p, &inner, ref, side)
	}
	nat.TranslateICMPError(p.frame, &p.Packet, &inner, out.Src, out.Dst, &innerOut, f.Delta(side))
	o := p.outgoing(&out.Dst, precedenceOf(f.State(), side))
	o.splittable = false
	return w.send(o, w.nextHop(f, side, &out.Dst))
}

// minIPv6MTU is the lowest valid path MTU over IPv6 (RFC 8200 section 5, RFC 8201 section 4).
const minIPv6MTU = 1280

// checkPathMTU returns None if the announcement of a path MTU may be translated, else the drop
// reason. An announcement from a client's side lowers the backend's path MTU to the gateway's
// address, which all clients share. So the MTU must be possible for a link on the way, the quoted
// packet must be larger than it, and the rate is limited. inner is the quoted packet, whose length
// was quoted bytes. side is the side that sent the error. The rate limit applies to the client side
// only, and counts by the flow's client: the source of the error may be any router on the way.
func (w *Worker) checkPathMTU(mtu uint32, quoted int, inner *header.Packet, side flowtable.Side) reason.Drop {
	floor := uint32(w.c.PathMTUFloor)
	if inner.Tuple.V6 {
		floor = max(floor, minIPv6MTU)
	}
	switch {
	case mtu < floor:
		return reason.ICMPMTUFloor
	case quoted <= int(mtu) || !inner.DF:
		return reason.ICMPMTUQuote
	case side == flowtable.ReplySide:
		return reason.None
	}
	if !w.rates.pathMTUs.Allow(w.rates.site(&inner.Tuple.Dst), uint64(w.planner.Now)) {
		return reason.ICMPMTULimit
	}
	return reason.None
}

// icmpNoFlow decides about an error that belongs to no flow. If it is for an address that the node
// shares, it may be about the node's own traffic.
func (w *Worker) icmpNoFlow(p *packet) decide.Verdict {
	shared := w.planner.Snap.Owned(p.Tuple.Dst)&(services.AddrNode|services.AddrSNAT) != 0
	if p.kernel || shared && !w.planner.Rejects(p.Tuple.Dst) {
		return w.withoutFlow(p)
	}
	return drop(reason.ICMPNoFlow)
}

// firstICMP decides about the first fragment of an ICMP message. It records the message's type,
// which later fragments need, in place of the destination port.
func (w *Worker) firstICMP(p *packet) decide.Verdict {
	p.Tuple.DstPort = uint16(p.ICMPType)
	r := w.firstFragment(p)
	if p.ICMPType != echoRequest(p.Tuple.V6) || !w.echoes(p) {
		return w.withoutFlow(p)
	}
	if r != reason.None {
		return drop(r)
	}
	return w.echoFragment(p)
}
