package decide

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Bind updates the fields of a flow that belong to this process: its next hops after a change of
// routes, and its backend after a restart.
func (s *Planner) Bind(ref flowtable.Ref) {
	f := s.Flows.Flow(ref)
	binding, _, _ := f.Bound()
	if binding == s.View.Generation {
		return
	}
	s.Rebound++
	var toBackend, toClient header.Tuple
	s.Flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	s.Flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	hopToBackend, hopToClient := uint16(s.View.Lookup(&toBackend.Dst).Hop), uint16(s.View.Lookup(&toClient.Dst).Hop)
	if binding != 0 {
		f.BindHops(s.View.Generation, hopToBackend, hopToClient)
		return
	}
	service, backend := s.owner(ref)
	s.Flows.Bind(ref, s.View.Generation, service, backend, hopToBackend, hopToClient)
	Recharge(s.Snap, s.Flows, ref, s.Now)
}

// owner is Adopt by the flow's tuples.
func (s *Planner) owner(ref flowtable.Ref) (service, backend uint32) {
	var toBackend, toClient header.Tuple
	s.Flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	s.Flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	client := toClient.Reverse()
	return Adopt(s.Snap, &client, &toBackend)
}

// Adopt finds the service and backend, as a snapshot numbers them, of a flow that an earlier
// process made: client is the client's tuple, toBackend the one that its packets leave with.
// It returns zeros if they are gone: a TCP flow lives on uncounted, a UDP flow is scheduled anew.
// It is on the path of packets, and costs no more than services.Service.Find.
func Adopt(s *services.Snapshot, client, toBackend *header.Tuple) (service, backend uint32) {
	f := s.Frontend(client)
	if f == nil {
		return 0, 0
	}
	if ref := f.Service.Find(s, toBackend.Dst, toBackend.DstPort); ref != 0 {
		return uint32(f.Service.ID), uint32(ref)
	}
	return uint32(f.Service.ID), 0
}
