package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// send queues a packet for its next hop, holds it if the hop is not known or not resolved, or
// returns the drop.
func (w *Worker) send(o outgoing, id nexthop.ID) decide.Verdict {
	return w.sendTo(o, id, w.c.Hops.Hop(id))
}

// sendTo is send with a hop that is already loaded: id may name another hop by now.
func (w *Worker) sendTo(o outgoing, id nexthop.ID, hop *nexthop.Hop) decide.Verdict {
	switch {
	case id == 0 || hop == nil || (hop.Kind == nexthop.OnLink && !hop.Ready):
		if id != 0 { // the hop was resolved before, or is a router
			o.precedence = max(o.precedence, known)
		}
		return w.hold(o)
	case hop.Kind == nexthop.Kernel:
		return w.sendKernel(o) // the kernel fragments packets that are too big, or sends an error
	case hop.Kind == nexthop.Unreachable || int(hop.Link) >= len(w.c.Egress):
		return drop(reason.NoRoute)
	case hop.MTU != 0 && o.end-o.l3 > hop.MTU:
		if !o.splittable {
			return drop(reason.PacketTooBig)
		}
		return w.split(o, hop)
	}
	w.queue(w.c.Egress[hop.Link], w.encapsulate(o, hop))
	return queued
}

// sendKernel gives a packet to the kernel by the host link.
func (w *Worker) sendKernel(o outgoing) decide.Verdict {
	if w.c.Host < 0 {
		return drop(reason.HostLinkDown)
	}
	w.queue(w.c.Host, w.encapsulate(o, &w.host))
	return queued
}

// returnToKernel gives a packet to the kernel unchanged, but for VLAN tags and padding.
func (w *Worker) returnToKernel(p *packet) {
	end := p.End
	if end == 0 || p.L3 == 0 {
		end = uint16(p.bytes)
	}
	o := outgoing{desc: p.desc, l3: max(p.L3, header.EthernetBytes), end: end, v6: p.Tuple.V6}
	if v := w.sendKernel(o); v.Action == decide.Drop {
		w.dropped(p.desc, v.Reason)
	}
}

func (w *Worker) carryOut(p *packet, v decide.Verdict) {
	if v.Action == decide.ToKernel && !p.kernel && w.planner.Forged(p.Tuple.Src) {
		v = drop(reason.SpoofedSource)
	}
	if w.tap != nil {
		w.tapEnd(p, v)
	}
	switch v.Action {
	case decide.Queued:
	case decide.ToKernel:
		w.returnToKernel(p)
	default:
		w.dropped(p.desc, v.Reason)
	}
}
