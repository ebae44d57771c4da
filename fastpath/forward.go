package fastpath

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// forward forwards a packet of a known flow and updates the flow.
func (w *Worker) forward(d Desc, p *header.Packet, ref flowtable.Ref, side flowtable.Side) Verdict {
	v := w.deliver(d, p, ref, side)
	if v.Action == Queued {
		w.flows.Observe(ref, side, p.TCPFlags, w.now)
	}
	return v
}

// deliver sends a packet of a known flow on: it leaves with the reverse of the other
// side's tuple.
func (w *Worker) deliver(d Desc, p *header.Packet, ref flowtable.Ref, side flowtable.Side) Verdict {
	if p.TTL <= 1 {
		w.sendError(d, p, nat.TimeExceeded, 0)
		return drop(stats.TTLExceeded)
	}
	w.bind(ref)
	f := w.flows.Flow(ref)
	var out header.Tuple
	w.flows.Outgoing(ref, side, &out)
	id := w.nextHop(f, side, &out.Dst)
	if v := w.fits(d, p, id); v.Action == Drop {
		return v
	}
	w.stats.Backends.Count(f.BackendRef(), uint8(side), w.bytes(d))

	frame := w.frame(d)
	nat.DecrementTTL(frame, p)
	nat.Translate(frame, p, &out, f.Delta(side))
	if p.Fragment != header.NotFragment && !p.Tuple.V6 {
		nat.SetIPv4ID(frame, p, w.frags.id)
	}
	return w.send(outgoing{d, p.L3, p.End, p.Tuple.V6, !p.DF && !p.Tuple.V6, out.Dst}, id)
}

// fits reports whether a packet may take a hop: Queued if so, or the drop, with the
// ICMP error that a router must send. A packet whose DF bit allows it is
// fragmented later, by send.
func (w *Worker) fits(d Desc, p *header.Packet, id nexthop.ID) Verdict {
	hop := w.c.Hops.Hop(id)
	switch {
	case id == 0 || hop == nil:
		return queued
	case hop.Kind == nexthop.Unreachable:
		w.sendError(d, p, unreachable.err, 0)
		return unreachable.verdict
	case hop.MTU != 0 && p.End-p.L3 > hop.MTU && p.DF:
		w.sendError(d, p, nat.FragmentationNeeded, hop.MTU)
		return drop(stats.PacketTooBig)
	}
	return queued
}

// unreachable is what a packet gets whose next hop the kernel has no route to.
var unreachable = refusal{drop(stats.NoRoute), true, nat.HostUnreachable}

// nextHop returns the flow's hop in the direction of a packet from side, looking
// it up again while it is not known. Zero means: hold the packet. The flow must be bound.
func (w *Worker) nextHop(f *flowtable.Flow, side flowtable.Side, dst *header.Addr) nexthop.ID {
	binding, toBackend, toClient := f.Bound()
	id := &toBackend
	if side == flowtable.ReplySide {
		id = &toClient
	}
	if *id != 0 {
		return nexthop.ID(*id)
	}
	*id = uint16(w.view.Lookup(dst).Hop)
	// Another worker may have bound the flow by a later view since: then the other
	// hop is not of our view, and only this packet takes ours.
	if *id != 0 && binding == w.view.Generation {
		f.BindHops(binding, toBackend, toClient)
	}
	return nexthop.ID(*id)
}

// bind makes sure that what a flow remembers of this process is current: its next
// hops after a change of routes, and its backend after a restart.
func (w *Worker) bind(ref flowtable.Ref) {
	f := w.flows.Flow(ref)
	binding, _, _ := f.Bound()
	if binding == w.view.Generation {
		return
	}
	var toBackend, toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	hopToBackend, hopToClient := uint16(w.view.Lookup(&toBackend.Dst).Hop), uint16(w.view.Lookup(&toClient.Dst).Hop)
	if binding != 0 {
		f.BindHops(w.view.Generation, hopToBackend, hopToClient)
		return
	}
	service, backend := w.owner(ref)
	w.flows.Bind(ref, w.view.Generation, service, backend, hopToBackend, hopToClient)
}

// owner is Adopt by the flow's tuples.
func (w *Worker) owner(ref flowtable.Ref) (service, backend uint32) {
	var toBackend, toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	client := toClient.Reverse()
	return Adopt(w.snap, &client, &toBackend)
}

// Adopt finds the service and backend, as a snapshot numbers them, of a flow that an earlier
// process made: client is the client's tuple, toBackend the one that its packets leave with.
// Zero where they are gone: TCP lives on uncounted, UDP is scheduled anew.
func Adopt(s *services.Snapshot, client, toBackend *header.Tuple) (service, backend uint32) {
	f := s.Frontend(client)
	if f == nil {
		return 0, 0
	}
	for _, set := range [2]*services.EndpointSet{f.Outside.Set, f.Pod.Set} {
		if set == nil {
			continue
		}
		if ref := set.Find(s, toBackend.Dst, toBackend.DstPort); ref != 0 {
			return uint32(f.Service.ID), uint32(ref)
		}
	}
	for _, ref := range f.Service.Backends { // one that takes no new flows: rare
		b := s.Backend(ref)
		if b != nil && b.Addr == toBackend.Dst && b.Port == toBackend.DstPort {
			return uint32(b.Service), uint32(ref)
		}
	}
	return uint32(f.Service.ID), 0
}
