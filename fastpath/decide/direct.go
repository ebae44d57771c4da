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

// moved reports whether a frontend belongs to another service port than the given one.
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
// scheduled again. A SYN is also scheduled again if another service port has the frontend. Segments
// in the middle of a connection may open a flow, so they get the next node, which resets the
// connection; if there is no other node, the class is BackendGone. A SYN that the client repeats
// stays with a node that serves, unlike a SYN of a translated flow (services.Snapshot.RetryOther):
// the node may have answered, and its late SYN-ACK would reach the client, which would acknowledge
// it to another node.
func (s *Planner) classifyDirect(ref flowtable.Ref, side flowtable.Side, p *header.Packet) Class {
	if side == flowtable.ReplySide {
		return InFlow
	}
	s.bindDirect(ref)
	b, syn := s.nodeOf(ref, &p.Tuple), IsSYN(p.TCPFlags)
	serves := s.nodeServes(b, &p.Tuple, syn, s.Flows.Flow(ref).Service())
	switch {
	case s.stranded(b, &p.Tuple, syn):
		return BackendGone
	case overDirect(b, serves, &p.Tuple, syn, s.Flows.Ended(ref)):
		return Superseded
	case syn && s.Flows.Repeated(ref, s.Now, !serves) && !serves:
		return Unanswered
	}
	return InFlow
}

// nodeServes reports whether a node serves a client's packet of the service port of its flow.
func (s *Planner) nodeServes(b *services.Backend, client *header.Tuple, syn bool, service uint32) bool {
	return b != nil && b.Flags&services.BackendServing != 0 && !(syn && s.moved(client, service))
}

// stranded reports whether a client's packet belongs to a connection whose node is gone, and no
// other node can get it: its Service is gone, too, or has no endpoint, or is now translated. The
// record has only a hash of the node's address (flowtable.NodeMark), so the packet cannot be sent
// there, and without a Node object the address may no longer belong to a node.
func (s *Planner) stranded(b *services.Backend, client *header.Tuple, syn bool) bool {
	if b != nil || syn || !client.Stateful() {
		return false
	}
	d := s.Snap.Decide(client)
	return d.Outcome != services.Admit || !d.Frontend.Service.Direct
}

// overDirect reports whether a client's packet of a direct flow must be scheduled again. ended:
// the client has sent a FIN or RST.
func overDirect(b *services.Backend, serves bool, client *header.Tuple, syn, ended bool) bool {
	switch {
	case b == nil:
		return true
	case client.Proto == header.ProtoUDP:
		return !serves
	}
	return syn && !serves && ended
}

// TunnelRoute returns the route to a node. It returns false if no tunnel leads there: only the
// kernel reaches the node, or the interface towards it has no address of the family. The source of
// a tunnel is the address that the kernel would send from.
func (s *Planner) TunnelRoute(node *header.Addr) (r nexthop.Route, ok bool) {
	r = s.View.Lookup(node)
	return r, r.Kind == nexthop.OnLink && r.Source != (header.Addr{}) && r.Source.Is4() == node.Is4()
}
