package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// frameHeadroom is the offset of a generated packet in its frame, in bytes; received packets have
// the same offset (XDP_PACKET_HEADROOM, include/uapi/linux/bpf.h).
const frameHeadroom = 256

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
	if ref == 0 {
		return w.icmpNoFlow(p)
	}
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
	nat.TranslateICMPError(p.frame, &p.Packet, &inner, out.Src, out.Dst, &innerOut, f.Delta(side))
	o := p.outgoing(&out.Dst, precedenceOf(f.State(), side))
	o.splittable = false
	return w.send(o, w.nextHop(f, side, &out.Dst))
}

// pathMTURate and pathMTUBurst limit the path MTU announcements that a worker translates from one
// site of clients (header.SitePrefix4), per second and at once. A backend keeps a path MTU for ten
// minutes (net.ipv4.route.mtu_expires), so a site needs about one announcement for each backend in
// that time. A burst has one for each segment that a sender has in flight.
const pathMTURate, pathMTUBurst = 20, 50

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
	hi, lo := inner.Tuple.Dst.Prefix(header.SitePrefix4, header.SitePrefix6)
	if !w.pathMTUs.Allow(w.siteKey.Words(hi, lo, 0), uint64(w.planner.Now)) {
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

// sendError answers a packet with a generated ICMP error, if one may be sent and the rate allows
// it. It must run before the packet is rewritten, because the error quotes the received packet. The
// error's source is the packet's destination, the only address that the sender knows.
func (w *Worker) sendError(p *packet, kind nat.ErrorKind, mtu uint16) {
	if p.kernel && w.planner.View.Lookup(&p.Tuple.Src).Hop == 0 {
		return
	}
	w.answer(p, w.limitOf(kind), &w.n.icmpLimited, func(b []byte) (int, bool) {
		return nat.BuildError(b, p.frame, &p.Packet, kind, p.Tuple.Dst, mtu)
	})
}

// limitOf returns the rate limit of a kind of ICMP error. Any sender can cause "unreachable" errors
// without a flow, so they must not use up the rates of path MTU errors, which connections need, and
// of traceroute's answers.
func (w *Worker) limitOf(kind nat.ErrorKind) *nat.FairRateLimit {
	switch kind {
	case nat.FragmentationNeeded:
		return &w.tooBig
	case nat.TimeExceeded:
		return &w.expired
	}
	return &w.limit
}

// answer sends a generated packet to the source of p. build writes it into a frame, as IP behind an
// Ethernet header without tags. It reports whether it generated a packet. If the rate limit of the
// sender's site is exceeded, or no frame is free, it counts the answer as limited.
func (w *Worker) answer(
	p *packet, rate *nat.FairRateLimit, limited *uint64, build func(b []byte) (n int, ok bool),
) bool {
	hi, lo := p.Tuple.Src.Prefix(header.SitePrefix4, header.SitePrefix6)
	if !rate.Allow(w.siteKey.Words(hi, lo, 0), uint64(w.planner.Now)) {
		*limited++
		return false
	}
	addr, ok := w.pool.Get()
	if !ok {
		*limited++
		return false
	}
	start, end := addr+frameHeadroom, addr+w.pool.frameSize
	n, ok := build(w.mem[start:end:end])
	if !ok {
		w.pool.Put(addr)
		return false
	}
	w.n.generated++
	d, dst := Desc{Addr: start, Len: uint32(n)}, p.Tuple.Src
	o := outgoing{d, header.EthernetBytes, uint16(n), p.Tuple.V6, false, dst, unproven}
	if v := w.send(o, w.planner.View.Lookup(&dst).Hop); v.Action == decide.Drop {
		w.dropped(d, v.Reason)
	}
	return true
}
