package conn

import "sluice.dev/sluice/nat/header"

// While the time until the backend's first payload is measured, an established TCP connection has
// MetaFin, which has no other meaning in this state: Match forwards no packet of such a flow, so
// all its packets pass Observe. A change of state ends that.

// Timed reports whether the time until the backend's first payload is measured.
func (m Meta) Timed() bool { return m.State() == Established && m&MetaFin != 0 }

// MakeTimed returns m, in Established, as a flow that is timed.
func (m Meta) MakeTimed() Meta { return m | MetaFin }

// Untimed returns m as a flow that is not timed.
func (m Meta) Untimed() Meta {
	if m.Timed() {
		return m &^ MetaFin
	}
	return m
}

// Opens reports whether the step from m to n establishes a TCP connection by the client's
// acknowledgement of the backend's SYN-ACK.
func (m Meta) Opens(n Meta, from Side) bool {
	return m.Provable() && n.State() == Established && !n.Reset() && from == ClientSide
}

// Resets reports whether the step from m to n is the first RST of a TCP connection to which the
// backend has agreed, and which no end has closed.
func (m Meta) Resets(n Meta) bool {
	return n.Reset() && !m.Reset() && m.Proto() == header.ProtoTCP &&
		(m.State() == SynRecv || m.State() == Established)
}

// Payload reports whether the segment has payload, and neither opens nor resets a connection.
func (s *Segment) Payload() bool { return s.Data && s.Flags&(header.TCPSYN|header.TCPRST) == 0 }
