package flowtable

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/proxyproto"
)

// A flow of a Service with PROXY protocol has a header in front of the client's bytes. The state of
// the header is in the flow's record, so that it outlives the process: whether the flow has a
// header (conn.MetaProxied), whether it is sent (the state), whether it is acknowledged
// (conn.MetaHeaderAcked), and the initial sequence numbers of both ends (next and created). The
// header's bytes follow from the flow's client tuple.

// Proxied reports whether a PROXY header goes in front of the client's bytes.
func (f *Flow) Proxied() bool { return f.load().Proxied() }

// Insertion is the PROXY header of a flow.
type Insertion struct {
	nat.Insertion
	// Ack is the acknowledgement number of a segment with the header: it acknowledges the backend's
	// SYN. It is valid if HasAck is set: the header was sent by this version of the program.
	Ack    uint32
	HasAck bool
	// Reset: one end sent an RST, and no later packet has shown that the connection lives on.
	Reset bool
}

// cookies is the number of SYN cookies with the same hash: one for each MSS (msstab in
// net/ipv4/syncookies.c).
const cookies = 4

// Begins reports whether a client's segment with these numbers, of which seq is translated, could
// begin a connection at a backend that has none, because its acknowledgement number is a SYN cookie
// that the client knows. A cookie is a hash of the tuple, plus the sequence number of the SYN, plus
// one of four values that encode the MSS. So every pair of numbers whose difference is within 3 of
// the difference of the header's numbers is a valid cookie.
func (i *Insertion) Begins(seq, ack uint32) bool {
	return i.HasAck && ack-i.Ack-(seq-i.First)+(cookies-1) <= 2*(cookies-1)
}

// Pending reports whether the header is sent and not acknowledged.
func (i *Insertion) Pending() bool { return i.Sent && !i.Acked }

// Insertion returns the PROXY header of a flow that has one.
func (h *Handle) Insertion(r Ref) Insertion {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	return Insertion{
		Insertion: nat.Insertion{
			First: f.next.Load() + 1, Bytes: proxyproto.Bytes(r&refV6 != 0),
			Sent: m.HeaderSent(), Acked: m.HeaderAcked(),
		},
		Ack: word + 1, HasAck: m.HeaderSent() && m.KeepsISN(), Reset: m.Reset(),
	}
}

// HiddenSYN returns the sequence number with which a client's SYN leaves while the flow's PROXY
// header is sent. The client cannot know this number: otherwise, in a connection that the SYN
// opens, it could send bytes in the place of the header. It is the same for all SYNs of a flow, so
// the backend answers a repeated one as the first.
func (h *Handle) HiddenSYN(r Ref) uint32 {
	k, secret := h.arena(r&refV6 != 0).keyOf(r.index(), ReplySide), h.secret
	if h.hidden.seed != ([2]uint64{}) {
		secret = &h.hidden.key
	}
	return uint32(secret.hash(r&refV6 != 0, &k) >> 32)
}

// hiddenKey is the key of HiddenSYN in a group, and the seed that it is derived from.
type hiddenKey struct {
	seed [2]uint64
	key  HashKey
}

// ShareHidden makes HiddenSYN the same for all gateways of a group, which share a secret seed: the
// answer to a SYN may pass another gateway than the SYN. A seed of 0 means no seed.
func (h *Handle) ShareHidden(seed [2]uint64) {
	if seed == h.hidden.seed {
		return
	}
	h.hidden.seed = seed
	for i := range h.hidden.key {
		in := append([]byte("sluice hidden SYN:"), byte(i))
		in = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(in, seed[0]), seed[1])
		sum := sha256.Sum256(in)
		h.hidden.key[i] = binary.LittleEndian.Uint64(sum[:])
	}
}

// AnswersHidden reports whether a backend's segment acknowledges HiddenSYN: then the backend does
// not have the flow's connection. noted: the SYN has passed this gateway.
func (h *Handle) AnswersHidden(r Ref, s *Segment) (hidden, noted bool) {
	return s.Acknowledges(h.HiddenSYN(r)), h.Flow(r).load()&conn.MetaReopened != 0
}

// FirstAnswer returns the sequence number of the SYN-ACK that a flow has noted, if its handshake is
// not proven.
func (h *Handle) FirstAnswer(r Ref) (isn uint32, ok bool) {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	return word, m.Provable()
}

// Answers reports whether a SYN-ACK acknowledges the SYN that opened a flow, or else may
// acknowledge a later SYN of its client, which had another sequence number.
func (h *Handle) Answers(r Ref, s *Segment) (opening, later bool) {
	f := h.Flow(r)
	m := f.load()
	opening = m&conn.MetaOpening != 0 && s.Acknowledges(f.next.Load())
	return opening, !opening && m&(conn.MetaOpening|conn.MetaReopened) != conn.MetaOpening
}

// InUse reports whether the backend has acknowledged the PROXY header of a flow, and packets have
// shown within the last two seconds that the connection lives on.
func (h *Handle) InUse(r Ref) bool {
	m := h.Flow(r).load()
	return m.HeaderAcked() && !m.Reset() && !m.State().Over() && h.now.Ticks().Since(m.Seen()) < 2*conn.RefreshTicks
}

// Answered reports whether a segment is the SYN-ACK, or a copy of it, that began the connection of
// a flow with a PROXY header, which is not acknowledged. After any other SYN-ACK the header would
// not be first.
func (h *Handle) Answered(r Ref, s *Segment) bool {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	return s.SYNACK() && m.KeepsISN() && !m.HeaderAcked() && word == s.Seq && s.Acknowledges(f.next.Load())
}

// HeaderAcked must be called when the backend has acknowledged the whole PROXY header of a flow.
func (h *Handle) HeaderAcked(r Ref) {
	for f := h.Flow(r); ; {
		m := f.load()
		if !m.HeaderPending() {
			return
		}
		if f.swap(m, m|conn.MetaHeaderAcked|conn.MetaHasISN) {
			h.changed(r)
			h.copyChanged(r)
			return
		}
	}
}

// resendTicks is how long after a flow's last packet its PROXY header is sent again by the sweep.
// A packet of either end sends it again in any case.
const resendTicks = int32(time.Minute / conn.Tick)

// unacknowledged has the flows found by a sweep whose PROXY header is not acknowledged.
type unacknowledged struct {
	n    int
	flow [64]Ref
}

func (u *unacknowledged) add(r Ref, m conn.Meta, now Ticks) {
	if u.n < len(u.flow) && now.Since(m.Seen()) <= resendTicks {
		u.flow[u.n] = r
		u.n++
	}
}

// Unacknowledged returns flows that the last Sweep found, whose PROXY header must be sent again. If
// there are too many, the next sweep finds the others. The result is valid until the next Sweep.
func (h *Handle) Unacknowledged() []Ref {
	u := &h.unacknowledged
	list := u.flow[:u.n]
	u.n = 0
	return list
}
