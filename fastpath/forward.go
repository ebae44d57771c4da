package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// forward forwards a packet of a known flow and updates the flow.
func (w *Worker) forward(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	if w.flows.Direct(ref) {
		return w.forwardDirect(p, ref, side)
	}
	if w.c.Copies != nil && side == flowtable.ClientSide && w.othersSegment(p, ref) {
		return drop(reason.NoFlow)
	}
	proxied := p.Tuple.Proto == header.ProtoTCP && w.flows.Flow(ref).Proxied()
	if proxied && side == flowtable.ClientSide {
		return w.forwardProxied(p, ref)
	}
	if proxied {
		var v decide.Verdict
		if ref, v = w.replyProxied(p, ref); ref == 0 {
			return v
		}
	}
	s := w.verified(p, ref, side) // deliverTranslated rewrites the packet and may give its frame away
	if side == flowtable.ReplySide {
		if v, leaves := w.mayLeave(p, ref, &s); !leaves {
			return v
		}
	}
	first := side == flowtable.ReplySide && p.Tuple.Proto == header.ProtoTCP && w.flows.Awaits(ref)
	v := w.deliverTranslated(p, ref, side)
	if first && !s.Unverified {
		w.countFirst(ref, s.Flags)
	}
	if v.Action == decide.Queued && w.observe(ref, side, s) {
		w.planner.Confirm(ref)
	}
	return v
}

// deliver forwards a packet of a known flow, and does not update the flow.
func (w *Worker) deliver(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	if w.flows.Direct(ref) {
		return w.deliverDirect(p, ref, side)
	}
	return w.deliverTranslated(p, ref, side)
}

// deliverTranslated forwards a packet of a flow without direct return, translated to the reverse of
// the other side's tuple.
func (w *Worker) deliverTranslated(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	if w.c.StrictReversePath && side == flowtable.ReplySide && w.offPath(p, ref) {
		return drop(reason.ReversePath)
	}
	if p.TTL <= 1 {
		w.sendError(p, nat.TimeExceeded, 0)
		return drop(reason.TTLExceeded)
	}
	p.flow, p.side = ref, side
	w.planner.Bind(ref)
	f := w.flows.Flow(ref)
	var out header.Tuple
	w.flows.Outgoing(ref, side, &out)
	id := w.nextHop(f, side, &out.Dst)
	if v := w.fits(p, id); v.Action == decide.Drop {
		return v
	}
	if f.Proxied() {
		if v := w.insertHeader(p, ref, side, id); v.Action == decide.Drop {
			return v
		}
	}
	w.stats.Backends.Count(f.BackendRef(), uint8(side), p.bytes)
	w.flows.Count(ref, side, p.bytes)

	nat.DecrementTTL(p.frame, &p.Packet)
	nat.Translate(p.frame, &p.Packet, &out, f.Delta(side))
	if p.Fragment != header.NotFragment {
		nat.SetFragmentID(p.frame, &p.Packet, p.id)
	}
	return w.send(p.outgoing(&out.Dst, precedenceOf(f.State(), side)), id)
}

// fits returns Queued if a packet may take a hop. Otherwise it sends the ICMP error that a router
// must send, and returns the drop. An IPv4 packet without DF is fragmented later, by send.
func (w *Worker) fits(p *packet, id nexthop.ID) decide.Verdict {
	hop := w.c.Hops.Hop(id)
	switch {
	case id == 0 || hop == nil:
		return queued
	case hop.Kind == nexthop.Unreachable:
		w.sendError(p, decide.Unreachable.Error, 0)
		return decide.Unreachable.Verdict
	case hop.MTU != 0 && p.End-p.L3 > hop.MTU && p.DF:
		w.sendError(p, nat.FragmentationNeeded, hop.MTU)
		return drop(reason.PacketTooBig)
	}
	return queued
}

// forwardFirst is forward for a plain packet that has just made its flow. If the hop needs no VLAN
// tags and the packet fits, it forwards the packet as finishPlain does.
func (w *Worker) forwardFirst(p *packet, ref flowtable.Ref) decide.Verdict {
	f, end := w.flows.Flow(ref), uint32(p.End)
	hop := w.boundHop(f.BoundTo(flowtable.ClientSide))
	if hop == nil || end > hop.PlainEnd() || w.egress.to[hop.Link] == nil || f.Proxied() {
		return w.forward(p, ref, flowtable.ClientSide)
	}
	p.flow, p.side = ref, flowtable.ClientSide
	hop.Use()
	s := w.verified(p, ref, flowtable.ClientSide)
	rewrites := [1]header.Rewrite{{MACs: hop.MACs()}}
	f.Rewrite(flowtable.ClientSide, p.Tuple.V6, &rewrites[0])
	nat.TranslatePlain(&w.memory, []Desc{p.desc}, rewrites[:], nil, false)
	w.stats.Backends.Count(f.BackendRef(), uint8(flowtable.ClientSide), p.bytes)
	w.flows.Count(ref, flowtable.ClientSide, p.bytes)
	w.queue(w.egress.to[hop.Link].link, Desc{Addr: p.desc.Addr, Len: end})
	w.observe(ref, flowtable.ClientSide, s)
	return queued
}
