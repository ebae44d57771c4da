package flowtable

import "sluice.dev/sluice/flowtable/conn"

// Reopens must be called for each TCP SYN of a client on an existing flow. If the SYN has another
// sequence number than the SYN that opened the flow, or has data, its answer acknowledges another
// number.
func (h *Handle) Reopens(r Ref, seq uint32, data bool) {
	f := h.Flow(r)
	for {
		m := f.load()
		if !m.Live() || m&(conn.MetaOpening|conn.MetaReopened) != conn.MetaOpening || f.next.Load() == seq && !data ||
			f.swap(m, m|conn.MetaReopened) {
			return
		}
	}
}

// Opening returns the sequence number of the SYN that opened a flow. ok is false if the number is
// not known, or if the client has sent SYNs with other numbers.
func (h *Handle) Opening(r Ref) (seq uint32, ok bool) {
	f := h.Flow(r)
	m := f.load()
	return f.next.Load(), m.Live() && m&(conn.MetaOpening|conn.MetaReopened) == conn.MetaOpening
}

// Foreign reports whether a TCP segment with the key of a flow's backend answers another SYN than
// the flow's (RFC 9293 section 3.10.7.3): it is a SYN-ACK, or any segment before the flow's SYN is
// answered, and acknowledges another number or none.
func (h *Handle) Foreign(r Ref, s *Segment) bool {
	seq, ok := h.Opening(r)
	if !ok || !s.SYNACK() && h.Flow(r).State() != SynSeen {
		return false
	}
	return !s.Acknowledges(seq)
}

// Ended reports whether a flow's connection is over or was reset. A backend that accepts another
// connection with the same addresses and ports no longer has the old one.
func (h *Handle) Ended(r Ref) bool {
	m := h.Flow(r).load()
	return m.Live() && (m.State().Over() || m.Reset())
}
