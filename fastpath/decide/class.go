package decide

import (
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Class is the relation of a packet to the flow that has its key.
type Class uint8

const (
	// InFlow: the packet belongs to the flow.
	InFlow Class = iota
	// Superseded: a client's packet that must be scheduled again: a SYN on a connection that is
	// over (RFC 9293 section 3.6.1), a datagram whose backend no longer serves or whose frontend
	// now belongs to another service port, or either on an outdated copy.
	Superseded
	// Unanswered: the second repetition of a SYN that the backend has not answered, if the flow
	// then moves to another backend: by configuration, or because this backend is gone.
	Unanswered
	// BackendGone: over UDP, a packet from an endpoint that is gone or whose service port lost the
	// frontend; over TCP and SCTP, an answer to a SYN or INIT from an endpoint that is gone, or on
	// a flow that no connection may begin on (MayBegin). With direct return, a client's packet in
	// the middle of a connection whose node is gone, if no other node gets it (stranded).
	BackendGone
)

// String returns the name of the class.
func (s Class) String() string {
	return [...]string{"in flow", "superseded", "unanswered", "backend gone"}[s]
}

// Classify returns the class of a packet of the flow. It binds the flow if the class depends on its
// backend, and records a repeated SYN.
func (s *Planner) Classify(ref flowtable.Ref, side flowtable.Side, p *header.Packet) Class {
	switch {
	case s.Flows.Direct(ref):
		return s.classifyDirect(ref, side, p)
	case p.Tuple.Proto == header.ProtoUDP:
		owned := s.Bind(ref)
		return s.datagram(ref, services.BackendRef(s.Flows.Flow(ref).BackendRef()), owned, side)
	case p.TCPFlags&header.TCPSYN == 0:
		return InFlow
	case side == flowtable.ReplySide:
		return s.handshake(ref, p.TCPFlags)
	case !IsSYN(p.TCPFlags):
		return InFlow
	case s.reopens(ref):
		return Superseded
	}
	gone := s.gone(ref) || !s.MayBegin(ref)
	if (gone || s.Snap.RetryOther) && s.Flows.Repeated(ref, s.Now, gone) {
		return Unanswered
	}
	return InFlow
}

// reopens reports whether a client's SYN on a flow opens another one.
func (s *Planner) reopens(ref flowtable.Ref) bool {
	return s.Flows.Closing(ref) || s.Flows.Outdated(ref, s.Now)
}

// handshake returns the class of an answer to a SYN. An open connection continues when its backend
// is no longer an endpoint, but no new connection may begin there. If another service port has the
// frontend by now, a new connection is its connection.
func (s *Planner) handshake(ref flowtable.Ref, flags uint8) Class {
	if flags&header.TCPACK == 0 || !s.Flows.Awaits(ref) {
		return InFlow
	}
	if s.gone(ref) {
		return BackendGone
	}
	now, ok := s.begins(ref)
	if !ok {
		return BackendGone
	}
	if service, _ := s.Flows.Flow(ref).Owner(); now.service != service {
		s.setOwner(ref, now)
	}
	return InFlow
}

// MayBegin reports whether a connection may begin on a flow. A handshake may end at the backend
// that was chosen for it. After an RST, a handshake begins a new connection on the tuple of the old
// one: it may begin if a new flow could be the same (fits). Without an RST the connection may still
// live: over SCTP an INIT ACK does not show whether it does.
func (s *Planner) MayBegin(ref flowtable.Ref) bool {
	_, ok := s.begins(ref)
	return ok
}

// begins returns the owner of a connection that begins on a flow, if it may begin (MayBegin).
func (s *Planner) begins(ref flowtable.Ref) (now owner, ok bool) {
	f := s.Flows.Flow(ref)
	service, backend := f.Owner()
	if f.State().HalfOpen() || !s.Flows.Ended(ref) {
		return owner{service, backend}, true
	}
	client, toBackend := s.tuples(ref)
	return s.fits(&client, &toBackend, f.Proxied(), service)
}

// gone reports whether the backend of a connection is no longer an endpoint of its service: its
// address may now belong to another pod. An endpoint that came back has another ref: gone searches
// for it, and stores it in the flow. When no Searches are left, gone returns true for every invalid
// ref. A SYN is then still forwarded to the backend (only the second repetition is Unanswered), and
// a SYN-ACK from it is dropped, so the client sends its SYN again.
func (s *Planner) gone(ref flowtable.Ref) bool {
	s.Bind(ref)
	f := s.Flows.Flow(ref)
	switch {
	case s.Snap.Backend(services.BackendRef(f.BackendRef())) != nil:
		return false
	case s.Searches == 0:
		return true
	}
	s.Searches--
	now := s.owner(ref)
	if now.backend == 0 {
		return true
	}
	s.setOwner(ref, now)
	return false
}

// replyGrace is how long after a UDP flow's last packet an endpoint may still reply although it is
// gone, or its service port lost the frontend. So replies in flight are not lost. No other pod gets
// the address of a deleted pod that soon.
const replyGrace = 2 * time.Second

// learnWait is how long a new UDP flow of another gateway is forwarded to an endpoint that this
// gateway does not know. The flow's owner may have received the endpoint earlier from the API
// server.
const learnWait = 10 * time.Second

// WithinGrace reports whether a packet of class BackendGone is a UDP reply within replyGrace.
func (s *Planner) WithinGrace(ref flowtable.Ref, p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoUDP && s.Flows.Idle(ref, s.Now) < replyGrace
}

// datagram returns the class of a packet of a UDP flow; owned is the result of Bind. The flow ends
// with its endpoint: the address may belong to another pod by now, which must not reply in its
// place. It also ends when another service port gets the frontend. An endpoint that is listed but
// no longer serves may still reply.
func (s *Planner) datagram(
	ref flowtable.Ref, backend services.BackendRef, owned bool, side flowtable.Side,
) Class {
	b := s.Snap.Backend(backend)
	switch {
	case side == flowtable.ClientSide && s.Flows.Outdated(ref, s.Now):
		return Superseded
	case owned && backend == 0 && s.Flows.NewCopy(ref, s.Now, learnWait) && s.mayLearn(ref):
		return InFlow
	case owned && b != nil && (side == flowtable.ReplySide || b.Flags&services.BackendServing != 0):
		return InFlow
	case side == flowtable.ReplySide:
		return BackendGone
	}
	return Superseded
}

// mayLearn reports whether the endpoint of another gateway's UDP flow may be a new endpoint that
// this gateway does not know yet: the frontend still belongs to the same service port, whose
// setting for PROXY headers is still the flow's.
func (s *Planner) mayLearn(ref flowtable.Ref) bool {
	var client header.Tuple
	s.Flows.Tuple(ref, flowtable.ClientSide, &client)
	flow, f := s.Flows.Flow(ref), s.Snap.Frontend(&client)
	if f == nil {
		return true
	}
	had := flow.Service()
	return f.Service.ProxyProtocol == flow.Proxied() && (had == 0 || had == uint32(f.Service.ID))
}

// IsSYN reports whether a segment with these TCP flags opens a connection.
func IsSYN(flags uint8) bool {
	return flags&(header.TCPSYN|header.TCPACK|header.TCPRST|header.TCPFIN) == header.TCPSYN
}
