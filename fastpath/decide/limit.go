package decide

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// limited returns the service limit that a new flow would exceed, or None. A flow that replaces a
// flow with a silent backend (Request.Not) is not a new connection.
func (s *Planner) limited(n *Plan, req *Request) reason.Drop {
	svc := n.Frontend.Service
	if !svc.Limits.Any() || req.Not != 0 || s.Flows == nil { // without a table nothing is counted
		return reason.None
	}
	return s.over(svc.Limits, uint32(svc.ID), req.Tuple)
}

// LimitedAgain returns the limit that a client's SYN on an established flow would exceed, or None.
// The SYN needs no plan, but it opens another connection if the backend's connection has ended, for
// example by the client's RST. The flow must be bound. It is already counted unless it was reset.
func (s *Planner) LimitedAgain(ref flowtable.Ref, t *header.Tuple) reason.Drop {
	f := s.Flows.Flow(ref)
	l := limitsOf(s.Snap, f)
	if !l.Any() || !f.State().Assured() {
		return reason.None
	}
	if s.Flows.Charged(ref) {
		l.SourceConnections, l.Connections = 0, 0
	}
	return s.over(l, f.Service(), t)
}

// over returns the limit of a service that one more connection of a client would exceed, or None.
func (s *Planner) over(l services.Limits, id uint32, client *header.Tuple) reason.Drop {
	t := s.Flows.Table()
	if l.SourceConnections|l.SourceNewConnections != 0 {
		u := t.SourceUse(&client.Src, client.V6, id)
		switch {
		case l.SourceConnections != 0 && u.Flows >= l.SourceConnections:
			return reason.LimitSourceConnections
		case l.SourceNewConnections != 0 && flowtable.Spent(u.Due, l.SourceNewConnections, s.Now):
			return reason.LimitSourceRate
		}
	}
	if l.Connections|l.NewConnections != 0 {
		u := t.ServiceUse(id)
		switch {
		case l.Connections != 0 && u.Flows >= l.Connections:
			return reason.LimitServiceConnections
		case l.NewConnections != 0 && flowtable.Spent(u.Due, l.NewConnections, s.Now):
			return reason.LimitServiceRate
		}
	}
	return reason.None
}

// Confirm must be called when a flow becomes established (flowtable.State.Assured): it counts the
// flow in its service's limits and confirms the pin of its client. The flow must be bound.
func (s *Planner) Confirm(ref flowtable.Ref) {
	s.charge(ref)
	s.confirmPin(ref)
}

// charge counts an established flow in the limits of its service, if it has any.
func (s *Planner) charge(ref flowtable.Ref) {
	if l := limitsOf(s.Snap, s.Flows.Flow(ref)); l.Any() {
		s.Flows.Charge(ref, flowtable.Rates{Source: l.SourceNewConnections, Service: l.NewConnections}, s.Now)
	}
}

// Recharge counts an established flow in the limits of the service that it was just bound to,
// numbered as in snapshot s. It takes no token of the rate limits.
func Recharge(s *services.Snapshot, h *flowtable.Handle, ref flowtable.Ref, now flowtable.Time) {
	f := h.Flow(ref)
	if l := limitsOf(s, f); l.Any() && f.State().Assured() {
		h.Charge(ref, flowtable.Rates{}, now)
	}
}

// limitsOf returns the limits of a flow's service; none if the service no longer exists.
func limitsOf(s *services.Snapshot, f *flowtable.Flow) services.Limits {
	if svc := s.Service(services.ServiceID(f.Service())); svc != nil {
		return svc.Limits
	}
	return services.Limits{}
}
