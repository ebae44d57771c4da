package flowtable

import (
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// Changes reports whether a segment with a good checksum would change more of the flow than its
// last-seen time. If so, the caller verifies the checksum before it calls Observe.
func (h *Handle) Changes(r Ref, from Side, s Segment, now Time) bool {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	syn := f.next.Load()
	return m.Live() && !m.AnsweredBefore(from, &s, word, syn) &&
		m.ChangedTo(m.Observe(from, s, word, now.Ticks()), from, &s, word, syn)
}

// UnprovenBy reports whether the handshake of a flow is not proven, and a client's segment
// acknowledges neither the SYN of the flow's backend nor its first data. The segment then belongs
// to a connection that another gateway of the group has made.
func (h *Handle) UnprovenBy(r Ref, s *Segment) bool {
	f := h.Flow(r)
	// As in Observe: the word first.
	word, m := f.word(), f.load()
	if m.Proto() != header.ProtoTCP || s.Flags&(header.TCPACK|header.TCPSYN|header.TCPRST) != header.TCPACK {
		return false
	}
	return m.State() == SynSeen || m.Provable() && s.Ack-(word+1) > maxUnseenBytes
}

// maxUnseenBytes bounds the bytes that a backend has sent by other gateways before their message
// about the flow arrives here. It exceeds an initial window (RFC 6928) with retransmissions. A
// random sequence number is in this range once in 4,096 times.
const maxUnseenBytes = 1 << 20

// Observe updates the flow by one of its packets, and reports whether this packet makes the flow
// assured (State.Assured). It writes at most once a second, when the state changes, and for each of
// the first datagrams of a UDP flow (conn.CountedDatagrams).
func (h *Handle) Observe(r Ref, from Side, s Segment, now Time) (assured bool) {
	f := h.Flow(r)
	h.observed = Observed{}
	for t := now.Ticks(); ; {
		// Load the word before meta: if another handle changes both in between, the swap of each
		// fails.
		word := f.word()
		m := f.load()
		if !m.Live() || m.AnsweredBefore(from, &s, word, f.next.Load()) {
			return false
		}
		n := m.Observe(from, s, word, t)
		if s.Unverified && header.Stateful(m.Proto()) && m.ChangedTo(n, from, &s, word, f.next.Load()) {
			return false
		}
		n = h.measure(r, m, n, from, &s, now)
		if n != m && !f.swap(m, n) {
			continue
		}
		h.observed.Reset = m.Resets(n)
		if from == ReplySide && h.waits != nil {
			h.answered(r, m, n, &s, now)
		}
		if isn, ok := m.AnsweredBy(n, from, &s, f.next.Load()); ok {
			f.swapWord(word, isn)
			if n.State() == m.State() && isn != word {
				h.changed(r)
			}
		} else if m.KeepsISN() && !n.KeepsISN() {
			f.swapWord(word, uint32(t))
		}
		if (n^m)&conn.MetaAccounted != 0 {
			h.moved(r, m, n)
			return n.State().Assured() && !m.State().Assured()
		}
		return
	}
}

// Idle returns how long ago the flow was last seen, to a second.
func (h *Handle) Idle(r Ref, now Time) time.Duration {
	return conn.Span(h.Flow(r).load().Seen(), now.Ticks())
}

// Closing reports whether the connection is over on both sides. A client's SYN on such a flow opens
// a new connection, for which a backend is selected again. A reset connection is not closing: the
// RST may be forged, and so may the SYN.
func (h *Handle) Closing(r Ref) bool {
	switch h.Flow(r).State() {
	case None, LastAckClient, LastAckBackend, TimeWaitClient, TimeWaitBackend, Closed:
		return true
	}
	return h.lost(r)
}
