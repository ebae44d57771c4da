package decide

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// bindDirect is Bind for a flow with direct return. Its backend is a node. A UDP flow whose
// frontend went to another service port loses its backend, so that it is scheduled again. A
// connection stays with its node, whose kube-proxy has its endpoint.
func (s *Planner) bindDirect(ref flowtable.Ref) {
	f := s.Flows.Flow(ref)
	binding, _, _ := f.Bound()
	if binding == s.Binding {
		return
	}
	var client header.Tuple
	s.Flows.Outgoing(ref, flowtable.ClientSide, &client)
	service, backend := f.Owner()
	switch {
	case binding == 0:
		service, backend = AdoptDirect(s.Snap, &client, s.Flows.Mark(ref))
	case !client.Stateful() && s.moved(&client, service):
		backend = 0
	}
	s.Rebound++
	s.Flows.Bind(ref, s.Binding, service, backend, uint16(nexthop.Tunnel), 0)
}

// moved reports whether a frontend is another service port's than the given one.
func (s *Planner) moved(client *header.Tuple, service uint32) bool {
	f := s.Snap.Frontend(client)
	return f != nil && uint32(f.Service.ID) != service
}

// nodeOf returns the node of a direct flow, which must be bound; nil if it is gone. A connection
// whose Service is gone finds its node in the direct Service that has its frontend now.
func (s *Planner) nodeOf(ref flowtable.Ref, client *header.Tuple) *services.Backend {
	b := s.Snap.Backend(services.BackendRef(s.Flows.Flow(ref).BackendRef()))
	if b != nil || !client.Stateful() {
		return b
	}
	service, backend := AdoptDirect(s.Snap, client, s.Flows.Mark(ref))
	if backend != 0 {
		s.Flows.Bind(ref, s.Binding, service, backend, uint16(nexthop.Tunnel), 0)
	}
	return s.Snap.Backend(services.BackendRef(backend))
}

// AdoptDirect is Adopt for a flow with direct return: client is its tuple, mark the NodeMark of its
// node. It first compares the node that a new flow would get, which is the right one unless
// endpoints have changed: two nodes with IPv6 addresses may have the same mark. It runs on the
// packet path, and costs no more than services.Service.FindNode.
func AdoptDirect(s *services.Snapshot, client *header.Tuple, mark uint32) (service, backend uint32) {
	f := s.Frontend(client)
	if f == nil || !f.Service.Direct {
		return 0, 0
	}
	service = uint32(f.Service.ID)
	ref := s.Node(f, client)
	if b := s.Backend(ref); b == nil || flowtable.NodeMark(&b.Addr) != mark {
		ref = f.Service.FindNode(s, mark)
	}
	return service, uint32(ref)
}

// classifyDirect is Classify for a flow with direct return. A connection whose node is gone, and,
// if its node has no endpoint that serves, a datagram and a SYN after the client's FIN or RST, are
// scheduled again. For a SYN the node has none, either, if another service port has the frontend.
// Segments in the middle of a connection may open a flow, so they find the next node, which resets
// the connection.
func (s *Planner) classifyDirect(ref flowtable.Ref, side flowtable.Side, p *header.Packet) Class {
	if side == flowtable.ReplySide {
		return InFlow
	}
	s.bindDirect(ref)
	b := s.nodeOf(ref, &p.Tuple)
	if b == nil {
		return Superseded
	}
	serves := b.Flags&services.BackendServing != 0
	if IsSYN(p.TCPFlags) && s.moved(&p.Tuple, s.Flows.Flow(ref).Service()) {
		serves = false
	}
	switch {
	case p.Tuple.Proto == header.ProtoUDP:
		if !serves {
			return Superseded
		}
	case IsSYN(p.TCPFlags) && !serves && s.Flows.Ended(ref):
		return Superseded
	case IsSYN(p.TCPFlags) && (!serves || s.Snap.RetryOther) && s.Flows.Repeated(ref, s.Now, !serves):
		return Unanswered
	}
	return InFlow
}
