package decide

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/header"
)

// handshakeSeconds is how long a client whose connection does not stand yet is pinned: as long as
// a SYN waits for its answer (flowtable.DefaultTimeouts).
const handshakeSeconds = 10

// Settle pins the client to the planned backend, for a service with session affinity: tentatively,
// as who sent the packet is not known yet (see Stood). Where another worker was faster with a
// flow of this client, its choice holds, so that a client's first flows do not part: then Settle
// changes the plan, and returns true.
//
// Many clients of UDP send one datagram and await one answer, from another port each time, so that
// none of their flows ever stands. Their tentative pins last as long as confirmed ones, where no
// confirmed one needs the room.
func (s *Planner) Settle(n *Plan, req *Request) (moved bool) {
	svc := n.Frontend.Service
	if svc.AffinitySeconds == 0 || s.Pins == nil {
		return false
	}
	want := affinity.Pin{Addr: n.Backend.Addr, Port: n.Backend.Port}
	if n.Pin != want && n.Pin.Port != 0 && !n.Tentative && n.Rule.Set.Find(s.Snap, n.Pin.Addr, n.Pin.Port) != 0 {
		return false // Request.Not: the confirmed pin holds until another backend has answered
	}
	seconds := svc.AffinitySeconds
	if req.Tuple.Stateful() {
		seconds = min(seconds, handshakeSeconds)
	}
	got := s.Pins.Settle(s.Now, req.Tuple.Src, svc.Identity, want, n.Pin, seconds)
	if got == want || !s.follow(n, got, req.Not) {
		return false
	}
	s.address(n, req)
	return true
}

// confirm pins the client of a flow that has come to stand to the flow's backend, for as long as
// its service says (k8s.io/kubernetes pkg/proxy/nftables/proxier.go: the time counts from the
// client's last new flow). The flow must be bound.
func (s *Planner) confirm(ref flowtable.Ref) {
	if s.Pins == nil {
		return
	}
	service, backend := s.Flows.Flow(ref).Owner()
	svc := s.Snap.Service(services.ServiceID(service))
	if svc == nil || svc.AffinitySeconds == 0 {
		return
	}
	b := s.Snap.Backend(services.BackendRef(backend))
	if b == nil || b.Flags&services.BackendServing == 0 {
		return
	}
	var toClient header.Tuple
	s.Flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	pin := affinity.Pin{Addr: b.Addr, Port: b.Port}
	confirm := s.Pins.Confirm
	if !toClient.Stateful() {
		confirm = s.Pins.ConfirmUnproven
	}
	confirm(s.Now, toClient.Dst, svc.Identity, pin, svc.AffinitySeconds)
}
