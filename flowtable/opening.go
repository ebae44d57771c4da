package flowtable

// If clients keep their address, a backend's answer to a connection through a frontend and its
// answer to a connection to the backend's own address can have the same addresses and ports. So a
// flow keeps the sequence number of its SYN, to recognise an answer to another SYN:
//
//	44  metaOpening    Flow.next has the number, written only before the flow is live
//	45  metaReopened   the client sent SYNs with several numbers: any answer may be valid
//
// Both notes stay for the life of the flow. A flow of an earlier version of the program has
// neither.
const (
	metaOpening  meta = 1 << 44
	metaReopened meta = 1 << 45
)

// Reopens must be called for each TCP SYN of a client on an existing flow. If the SYN has another
// sequence number than the SYN that opened the flow, or has data, its answer acknowledges another
// number.
func (h *Handle) Reopens(r Ref, seq uint32, data bool) {
	f := h.Flow(r)
	for {
		m := f.load()
		if !m.live() || m&(metaOpening|metaReopened) != metaOpening || f.next.Load() == seq && !data ||
			f.swap(m, m|metaReopened) {
			return
		}
	}
}

// Opening returns the sequence number of the SYN that opened a flow. ok is false if the number is
// not known, or if the client has sent SYNs with other numbers.
func (h *Handle) Opening(r Ref) (seq uint32, ok bool) {
	f := h.Flow(r)
	m := f.load()
	return f.next.Load(), m.live() && m&(metaOpening|metaReopened) == metaOpening
}

// maxEarlyData is an upper bound in bytes for the data that a client sends before its handshake is
// proven: the window of a SYN-ACK is not scaled (RFC 7323 section 2.2).
const maxEarlyData = 1 << 17

// acknowledgesSYN reports whether a backend's segment acknowledges the SYN that opened the flow,
// and perhaps data behind it. It returns true if the number of that SYN is not known.
func (f *Flow) acknowledgesSYN(m meta, s *Segment) bool {
	return m&(metaOpening|metaReopened) != metaOpening ||
		s.Flags&tcpACK != 0 && s.Ack-f.next.Load()-1 < maxEarlyData
}

// Foreign reports whether a TCP segment with the key of a flow's backend answers another SYN than
// the flow's (RFC 9293 section 3.10.7.3): it is a SYN-ACK, or any segment before the flow's SYN is
// answered, and acknowledges another number or none.
func (h *Handle) Foreign(r Ref, s *Segment) bool {
	seq, ok := h.Opening(r)
	if !ok || s.class() != classSYNACK && h.Flow(r).State() != SynSeen {
		return false
	}
	return s.Flags&tcpACK == 0 || s.Ack != seq+1
}

// Ended reports whether a flow's connection is over or was reset. A backend that accepts another
// connection with the same addresses and ports no longer has the old one.
func (h *Handle) Ended(r Ref) bool {
	m := h.Flow(r).load()
	return m.live() && (m.state().over() || m.reset())
}
