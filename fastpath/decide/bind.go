package decide

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/header"
)

// BindingOf returns the binding number of a snapshot and a view. It is the sum of two counts that
// never decrease, so the number changes whenever a worker loads a newer snapshot or view. Two
// workers can have the same number for different snapshots and views; in their next steps both load
// the newest ones, which have a greater number. It is never 0: 0 marks an unbound flow.
func BindingOf(s *services.Snapshot, v *nexthop.View) uint32 {
	n := v.Generation
	if s != nil {
		n += s.Moves
	}
	if n == 0 {
		return 1 << 31
	}
	return n
}

// Bind updates the fields of a flow that belong to this process: its next hops after a change of
// routes, its backend after a restart, and the owner of a UDP flow whose frontend went to another
// service port. It returns false, and leaves the flow unbound, if the new service port does not
// have the UDP flow's backend: the flow must then be replaced (datagram).
func (s *Planner) Bind(ref flowtable.Ref) (valid bool) {
	f := s.Flows.Flow(ref)
	binding, _, _ := f.Bound()
	switch {
	case binding == s.Binding:
		return true
	case s.Flows.Direct(ref):
		s.bindDirect(ref)
		return true
	}
	var toBackend, toClient header.Tuple
	s.Flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	s.Flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	service, backend := f.Owner()
	now := owner{service, backend}
	switch {
	case binding == 0, toBackend.Proto == header.ProtoUDP && backend == 0:
		client := toClient.Reverse()
		if now = s.adopt(&client, &toBackend, f.Proxied()); service != 0 && now.backend == 0 {
			now.service = service // mayLearn compares it
		}
	case toBackend.Proto == header.ProtoUDP:
		client := toClient.Reverse()
		if now, valid = s.datagramOwner(&client, &toBackend, f.Proxied(), now); !valid {
			return false
		}
	}
	s.Rebound++
	hopToBackend, hopToClient := uint16(s.View.Lookup(&toBackend.Dst).Hop), uint16(s.View.Lookup(&toClient.Dst).Hop)
	if binding != 0 && now == (owner{service, backend}) {
		f.BindHops(s.Binding, hopToBackend, hopToClient)
		return true
	}
	s.Flows.Bind(ref, s.Binding, now.service, now.backend, hopToBackend, hopToClient)
	Recharge(s.Snap, s.Flows, ref, s.Now)
	return true
}

// owner has the results of Flow.Owner.
type owner struct{ service, backend uint32 }

// adopt returns the owner of a flow of an earlier process, as Adopt does. A UDP flow gets no
// backend if its setting for PROXY headers (proxied) differs from the service port's.
func (s *Planner) adopt(client, toBackend *header.Tuple, proxied bool) (now owner) {
	now.service, now.backend = Adopt(s.Snap, client, toBackend)
	svc := s.Snap.Service(services.ServiceID(now.service))
	if client.Proto == header.ProtoUDP && svc != nil && svc.ProxyProtocol != proxied {
		now.backend = 0
	}
	return now
}

// datagramOwner returns the owner of a UDP flow by the snapshot. client is the client's tuple,
// toBackend the tuple of its translated packets. proxied: the flow sends a PROXY header before each
// of the client's datagrams. The flow keeps its owner as long as no other service port has its
// frontend, and the owner's setting for PROXY headers is still the flow's. Otherwise the service
// port that has the frontend becomes the owner, if a new flow could be the same: if its rule for
// this client has this backend, shows it the same source address, and has the same setting for
// PROXY headers. If not, ok is false.
func (s *Planner) datagramOwner(client, toBackend *header.Tuple, proxied bool, has owner) (_ owner, ok bool) {
	f := s.Snap.Frontend(client)
	if f == nil || uint32(f.Service.ID) == has.service && f.Service.ProxyProtocol == proxied {
		return has, true
	}
	if now, ok := s.fits(client, toBackend, proxied, has.service); ok {
		return now, true
	}
	return has, false
}

// fits returns the service port that has a flow's frontend, and its backend, if a new flow of the
// client could be the same: if the rule for this client has this backend, shows it the same source
// address, and has the same setting for PROXY headers. service is the flow's service port.
func (s *Planner) fits(client, toBackend *header.Tuple, proxied bool, service uint32) (now owner, ok bool) {
	d := s.Snap.Decide(client)
	if d.Outcome != services.Admit || d.Frontend.Service.ProxyProtocol != proxied || d.Frontend.Service.Direct {
		return owner{}, false
	}
	svc := d.Frontend.Service
	ref := d.Rule.Set.Find(s.Snap, toBackend.Dst, toBackend.DstPort)
	keeps := d.Rule.KeepClient && client.Src != toBackend.Dst
	if ref == 0 || keeps != (client.Src == toBackend.Src) ||
		uint32(svc.ID) != service && !s.mayStay(svc, client, toBackend) {
		return owner{}, false
	}
	return owner{uint32(svc.ID), uint32(ref)}, true
}

// mayStay reports whether session affinity lets a client's flow stay with its backend. A client
// without a pin needs a new flow, which pins it.
func (s *Planner) mayStay(svc *services.Service, client, toBackend *header.Tuple) bool {
	if !svc.Pins() || s.Pins == nil {
		return true
	}
	pin, _, _ := s.Pins.Get(s.Now, client.Src, svc.Identity)
	return pin == affinity.Pin{Addr: toBackend.Dst, Port: toBackend.DstPort}
}

// owner calls Adopt with the flow's tuples.
func (s *Planner) owner(ref flowtable.Ref) (now owner) {
	client, toBackend := s.tuples(ref)
	now.service, now.backend = Adopt(s.Snap, &client, &toBackend)
	return now
}

// tuples returns the client's tuple of a flow, and the tuple of its translated packets.
func (s *Planner) tuples(ref flowtable.Ref) (client, toBackend header.Tuple) {
	var toClient header.Tuple
	s.Flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	s.Flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	return toClient.Reverse(), toBackend
}

// setOwner gives a bound flow to another owner.
func (s *Planner) setOwner(ref flowtable.Ref, now owner) {
	binding, toBackend, toClient := s.Flows.Flow(ref).Bound()
	s.Flows.Bind(ref, binding, now.service, now.backend, toBackend, toClient)
	Recharge(s.Snap, s.Flows, ref, s.Now)
}

// Adopt finds the service and backend, as a snapshot numbers them, of a flow that an earlier
// process made: client is the client's tuple, toBackend the tuple of its translated packets. It
// returns zeros if they no longer exist: a TCP flow then continues uncounted, and a UDP flow is
// scheduled again. It runs on the packet path, and costs no more than services.Service.Find.
func Adopt(s *services.Snapshot, client, toBackend *header.Tuple) (service, backend uint32) {
	f := s.Frontend(client)
	if f == nil {
		return 0, 0
	}
	var ref services.BackendRef
	if !f.Service.Direct { // an endpoint in the host's network may have the address and port of a node
		ref = f.Service.Find(s, toBackend.Dst, toBackend.DstPort)
	}
	return uint32(f.Service.ID), uint32(ref)
}
