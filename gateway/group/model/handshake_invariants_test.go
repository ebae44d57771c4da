package model

import "fmt"

// violation checks the invariants for a client that has an established connection:
//
//  1. Its gateway does not end the flow.
//  2. If its SYN-ACK left protected: a living gateway has the record.
//  3. ... and none forwards its segments to another backend, or answers them with RST. A gateway
//     may drop them silently, because the client repeats them.
//  4. ... and when nothing is under way, all gateways that the connection's gateway reaches, or
//     reached when it died, have the record: none drops the segments for ever.
func (m *handshakeModel) violation(s *handshakeState) string {
	if s.established == 0 {
		return ""
	}
	b := int(s.established) - 1
	if s.gateways[b].alive && s.gateways[b].own == noFlow {
		return fmt.Sprintf("ENDED: gateway %d has ended the flow of the established client", b)
	}
	if !s.protected {
		return ""
	}
	has, stalled := false, -1
	for g := range m.gateways {
		at := &s.gateways[g]
		switch {
		case !at.alive:
		case g == b, at.copyOf == s.established:
			has = true
		case at.own == noFlow && at.copyOf == 0 && at.leased == m.others(g):
			return fmt.Sprintf("LOST: gateway %d answers the client of backend %d with RST", g, b)
		case (at.own != noFlow || at.copyOf != 0) && !m.follows(proveSegments):
			return fmt.Sprintf("WRONG BACKEND: gateway %d forwards segments for backend %d to another one", g, b)
		case s.linked[g].has(b):
			stalled = g
		}
	}
	switch {
	case !has:
		return fmt.Sprintf("LOST: no living gateway has a record of the client of backend %d", b)
	case stalled >= 0 && m.quiet(s):
		return fmt.Sprintf("STALLED: gateway %d drops segments of the client of backend %d for ever", stalled, b)
	}
	return ""
}

// quiet reports whether no event is left that happens by itself.
func (m *handshakeModel) quiet(s *handshakeState) bool {
	for g := range m.gateways {
		at := &s.gateways[g]
		if at.own == asked || at.own == waiting || s.replies[g] != noReply {
			return false
		}
		for o := range m.gateways {
			if (at.leased|at.waits).has(o) && !s.hears(g, o) || s.lines[g][o][0].note != noNote {
				return false
			}
		}
	}
	return true
}
