package conn

import "sluice.dev/sluice/nat/header"

// maxEarlyData is an upper bound in bytes for the data that a client sends before its handshake is
// proven: the window of a SYN-ACK is not scaled (RFC 7323 section 2.2).
const maxEarlyData = 1 << 17

// acknowledgesSYN reports whether a backend's segment acknowledges the SYN that opened the flow,
// and perhaps data behind it. It returns true if the number of that SYN is not known.
func (m Meta) acknowledgesSYN(s *Segment, syn uint32) bool {
	return m&(MetaOpening|MetaReopened) != MetaOpening || s.Flags&header.TCPACK != 0 && s.Ack-syn-1 < maxEarlyData
}

// Provable reports whether a flow waits for proof that its connection is established, and keeps the
// backend's initial sequence number to verify it.
func (m Meta) Provable() bool { return m.State() == SynRecv && m.Proto() == header.ProtoTCP }

// ChangedTo reports whether the step from m to n, or the sequence number that is stored with it, is
// more than a refresh. isn is the number that is stored now; syn is as in AnsweredBy.
func (m Meta) ChangedTo(n Meta, from Side, s *Segment, isn, syn uint32) bool {
	next, ok := m.AnsweredBy(n, from, s, syn)
	return n.At(0) != m.At(0) || ok && next != isn
}

// AnsweredBefore reports whether a SYN-ACK of a backend is a copy of the one that began the open
// connection of a flow whose PROXY header is sent. isn is the sequence number of that SYN-ACK, syn
// that of the SYN. For other flows such a copy may restart the handshake, which any packet ends.
// For a flow with a PROXY header, no bytes of the client would pass until then.
func (m Meta) AnsweredBefore(from Side, s *Segment, isn, syn uint32) bool {
	return m.HeaderSent() && m.KeepsISN() && from == ReplySide && s.SYNACK() && s.Seq == isn && s.Acknowledges(syn)
}

// AnsweredBy returns the backend's initial sequence number, if the segment that changes m to n
// carries it: a SYN-ACK, or an ACK or a FIN without data, whose sequence number is one higher. The
// last such segment counts: a backend may send two SYN-ACKs with different numbers (SYN cookies a
// minute apart, a stack that keeps no half-open connections), and only its next ACK shows which of
// them the client has acknowledged. An RST shows nothing: its sequence number is the number that a
// forged ACK acknowledged (RFC 9293 section 3.10.7.1). Only a segment that acknowledges the flow's
// SYN replaces a known number: another client may have had the source port before, and packets of
// that connection may arrive late. syn is the sequence number of the SYN that opened the flow, if m
// has MetaOpening.
func (m Meta) AnsweredBy(n Meta, from Side, s *Segment, syn uint32) (isn uint32, ok bool) {
	if from == ClientSide || !n.Provable() || m.State() != SynSeen && !m.acknowledgesSYN(s, syn) {
		return 0, false
	}
	switch c := s.class(); c {
	case classSYNACK:
		return s.Seq, true
	default:
		return s.Seq - 1, m.State() == SynSeen || c == classACK || c == classFIN
	}
}
