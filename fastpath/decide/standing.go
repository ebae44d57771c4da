package decide

import (
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Standing is what a flow is to a packet that has its key.
type Standing uint8

const (
	// Stands: the packet is the flow's.
	Stands Standing = iota
	// Superseded: a client's packet that must be scheduled anew, a SYN on a connection that is
	// over (RFC 9293 section 3.6.1), or UDP whose backend no longer serves, or whose frontend went
	// to another service port.
	Superseded
	// Unanswered: a client's second repetition of a SYN that its backend has not answered, if
	// another backend is tried then: by configuration, or because this one is gone.
	Unanswered
	// BackendGone: a packet of an endpoint that is gone, or whose service port lost the frontend,
	// over UDP; or in answer to a SYN, of one that is gone.
	BackendGone
)

// String returns the name of the standing.
func (s Standing) String() string {
	return [...]string{"stands", "superseded", "unanswered", "backend gone"}[s]
}

// Classify returns the standing of a flow to a packet. It binds the flow if the standing depends on
// its backend, and notes a repeated SYN.
func (s *Planner) Classify(ref flowtable.Ref, side flowtable.Side, p *header.Packet) Standing {
	switch {
	case p.Tuple.Proto == header.ProtoUDP:
		owned := s.Bind(ref)
		return s.datagram(services.BackendRef(s.Flows.Flow(ref).BackendRef()), owned, side)
	case p.TCPFlags&header.TCPSYN == 0:
		return Stands
	case side == flowtable.ReplySide:
		return s.handshake(ref, p.TCPFlags)
	case !IsSYN(p.TCPFlags):
		return Stands
	case s.Flows.Closing(ref):
		return Superseded
	}
	gone := s.gone(ref)
	if (gone || s.Snap.RetryOther) && s.Flows.Repeated(ref, s.Now, gone) {
		return Unanswered
	}
	return Stands
}

// handshake returns the standing of a flow to an answer to a SYN. A connection with a backend that
// is no endpoint any more continues; a new one must not begin there.
func (s *Planner) handshake(ref flowtable.Ref, flags uint8) Standing {
	if flags&header.TCPACK != 0 && s.Flows.Awaits(ref) && s.gone(ref) {
		return BackendGone
	}
	return Stands
}

// gone reports whether the backend of a connection is no endpoint of its service any more: its
// address may be another pod's by now. An endpoint that came back has another ref: gone searches
// for it, and stores it in the flow. Once Searches are spent, an endpoint whose ref is not valid is
// taken for gone: a SYN is forwarded to it all the same (Unanswered is for the second repetition),
// and a SYN-ACK from it is dropped, which the client's next SYN repairs.
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
	service, backend := s.owner(ref)
	if backend == 0 {
		return true
	}
	binding, toBackend, toClient := f.Bound()
	s.Flows.Bind(ref, binding, service, backend, toBackend, toClient)
	Recharge(s.Snap, s.Flows, ref, s.Now)
	return false
}

// replyGrace is how long after the flow's last packet an endpoint that is gone, or whose service
// port lost the frontend, may still reply over UDP. So replies under way are not lost, and no pod
// gets the address of another that soon.
const replyGrace = 2 * time.Second

// WithinGrace reports whether a packet of an endpoint that is gone is such a reply.
func (s *Planner) WithinGrace(ref flowtable.Ref, p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoUDP && s.Flows.Idle(ref, s.Now) < replyGrace
}

// datagram returns the standing of a UDP flow; owned is what Bind returned. The flow never outlives
// its endpoint: the address of an endpoint that is gone may be another pod's by now, which must not
// reply in its place. Nor does it outlive its owner: another service port that has the frontend
// answers there. An endpoint that is still listed and no longer serves may still reply.
func (s *Planner) datagram(backend services.BackendRef, owned bool, side flowtable.Side) Standing {
	b := s.Snap.Backend(backend)
	switch {
	case owned && b != nil && (side == flowtable.ReplySide || b.Flags&services.BackendServing != 0):
		return Stands
	case side == flowtable.ReplySide:
		return BackendGone
	}
	return Superseded
}

// IsSYN reports whether TCP flags are those of a segment that opens a connection.
func IsSYN(flags uint8) bool {
	return flags&(header.TCPSYN|header.TCPACK|header.TCPRST|header.TCPFIN) == header.TCPSYN
}
