package decide

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/header"
)

// handshakeSeconds is how long a client is pinned whose connection is not established yet: as long
// as a SYN waits for its answer (flowtable.DefaultTimeouts).
const handshakeSeconds = 10

// Settle pins the client to the planned backend, for a service with session affinity. The pin is
// tentative, because the source address may be forged until the flow is established (Confirm). If
// another worker was faster with a flow of this client, its choice holds, so that all first flows
// of a client get one backend: Settle then changes the plan and returns true.
//
// Many UDP clients send one datagram and await one answer, from another port each time, so none of
// their flows is ever established. Their tentative pins last as long as confirmed pins, unless a
// confirmed pin needs the room.
func (s *Planner) Settle(n *Plan, req *Request) (moved bool) {
	svc := n.Frontend.Service
	if !svc.Pins() || s.Pins == nil {
		return false
	}
	want := affinity.Pin{Addr: n.Backend.Addr, Port: n.Backend.Port}
	if n.Pin != want && n.Pin.Port != 0 && !n.Tentative && n.Rule.Set.Find(s.Snap, n.Pin.Addr, n.Pin.Port) != 0 {
		return false // Request.Not: the confirmed pin remains until another backend has answered
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

// confirmPin pins the client of an established flow to the flow's backend, for the affinity time of
// its service (k8s.io/kubernetes pkg/proxy/nftables/proxier.go: the time counts from the client's
// last new flow). The flow must be bound.
func (s *Planner) confirmPin(ref flowtable.Ref) {
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
