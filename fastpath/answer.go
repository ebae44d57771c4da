package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// sendError answers a packet with a generated ICMP error, if one may be sent and the rate allows
// it. It must run before the packet is rewritten, because the error quotes the received packet. The
// error's source is the packet's destination, the only address that the sender knows.
func (w *Worker) sendError(p *packet, kind nat.ErrorKind, mtu uint16) {
	if p.kernel && w.planner.View.Lookup(&p.Tuple.Src).Hop == 0 {
		return
	}
	w.answer(p, w.rates.of(kind), &w.n.icmpLimited, func(b []byte) (int, bool) {
		return nat.BuildError(b, p.frame, &p.Packet, kind, p.Tuple.Dst, mtu)
	})
}

// sendReset answers a segment of an unknown connection with an RST, if the rate allows it. It must
// run before the packet is rewritten. The segment's checksum is not verified: an RST caused by a
// damaged segment has a wrong sequence number or belongs to no connection.
func (w *Worker) sendReset(p *packet) {
	if w.unknown == nil || w.unknown.mayReset(p.hash, w.planner.Now) {
		w.reset(p)
	}
}

// reset is sendReset for a connection that has no copy on its way. It reports whether there was an
// answer.
func (w *Worker) reset(p *packet) bool {
	ok := w.answer(p, &w.rates.resets, &w.n.resetsLimited, func(b []byte) (int, bool) {
		return nat.BuildReset(b, p.frame, &p.Packet, w.c.TTL)
	})
	if ok {
		w.n.resets++
	}
	return ok
}

// answer sends a generated packet to the source of p. build writes it into a frame, as IP behind an
// Ethernet header without tags. It reports whether it generated a packet. If the rate limit of the
// sender's site is exceeded, or no frame is free, it counts the answer as limited.
func (w *Worker) answer(
	p *packet, rate *nat.FairRateLimit, limited *uint64, build func(b []byte) (n int, ok bool),
) bool {
	if !rate.Allow(w.rates.site(&p.Tuple.Src), uint64(w.planner.Now)) {
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
	if w.tap != nil {
		w.tapMade(p.desc, d)
	}
	o := outgoing{d, header.EthernetBytes, uint16(n), p.Tuple.V6, false, dst, unproven}
	if v := w.send(o, w.planner.View.Lookup(&dst).Hop); v.Action == decide.Drop {
		w.dropped(d, v.Reason)
	}
	return true
}
