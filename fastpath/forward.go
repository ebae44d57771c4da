package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// forward forwards a packet of a known flow and updates the flow.
func (w *Worker) forward(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	s := w.verified(p, ref, side) // deliver rewrites the packet and may give its frame away
	first := side == flowtable.ReplySide && p.Tuple.Proto == header.ProtoTCP && w.flows.Awaits(ref)
	v := w.deliver(p, ref, side)
	if first && !s.Unverified {
		w.countFirst(ref, s.Flags)
	}
	if v.Action == decide.Queued && w.flows.Observe(ref, side, s, w.planner.Now) {
		w.planner.Stood(ref)
	}
	return v
}

// countFirst counts the first answer of a backend to a SYN as refused or answered, even if the
// answer is dropped later. If two workers receive an answer at once, both may count it.
func (w *Worker) countFirst(ref flowtable.Ref, flags uint8) {
	c := w.stats.Backends.At(services.BackendRef(w.flows.Flow(ref).BackendRef()).Index())
	switch {
	case c == nil:
	case flags&header.TCPRST != 0:
		c.Refused.Add(1)
	default:
		c.Answered.Add(1)
	}
}

// deliver forwards a packet of a known flow, translated to the reverse of the other side's tuple.
func (w *Worker) deliver(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	if w.c.StrictReversePath && side == flowtable.ReplySide && w.offPath(p, ref) {
		return drop(reason.ReversePath)
	}
	if p.TTL <= 1 {
		w.sendError(p, nat.TimeExceeded, 0)
		return drop(reason.TTLExceeded)
	}
	w.planner.Bind(ref)
	f := w.flows.Flow(ref)
	var out header.Tuple
	w.flows.Outgoing(ref, side, &out)
	id := w.nextHop(f, side, &out.Dst)
	if v := w.fits(p, id); v.Action == decide.Drop {
		return v
	}
	w.stats.Backends.Count(f.BackendRef(), uint8(side), p.bytes)

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

// nextHop returns the flow's hop for packets that came from side, and looks it up again while it is
// not known. Zero means: hold the packet. Bind must have been called.
func (w *Worker) nextHop(f *flowtable.Flow, side flowtable.Side, dst *header.Addr) nexthop.ID {
	binding, toBackend, toClient := f.Bound()
	if binding != w.planner.Binding {
		// This is a reply of an endpoint that lost its frontend, or another worker has bound the
		// flow to a newer view. The flow's hops are not valid in this worker's view: look up this
		// packet's hop alone.
		return w.planner.View.Lookup(dst).Hop
	}
	id := &toBackend
	if side == flowtable.ReplySide {
		id = &toClient
	}
	if *id != 0 {
		return nexthop.ID(*id)
	}
	if *id = uint16(w.planner.View.Lookup(dst).Hop); *id != 0 {
		f.BindHops(binding, toBackend, toClient)
	}
	return nexthop.ID(*id)
}
