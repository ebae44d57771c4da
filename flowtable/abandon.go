package flowtable

import (
	"sync/atomic"
	"time"

	"sluice.dev/sluice/flowtable/conn"
)

// abandonedTicks is how long answers to an abandoned flow are recognised: a backend on Linux
// repeats its SYN-ACK for 63 s (net.ipv4.tcp_synack_retries 5), and may begin late.
const abandonedTicks = Ticks(120 * time.Second / conn.Tick)

// Repeated must be called for each opening packet of a client (TCP SYN, SCTP INIT) on an existing
// flow. It returns true for the second unanswered repetition and for each later one: then the
// client should get another backend. If the network duplicates a packet, it returns true for one of
// the copies, at one worker. It does not refresh the flow.
//
// A flow in SynSeen began with the first packet. A repetition counts as the first if the flow is at
// least 0.5 s old. It counts as the second if the flow is at least 1.5 s old and the first was at
// least 0.5 s earlier. Other repetitions are copies of one packet; from an age of 25.5 s on copies
// count as well.
//
// On an open connection the first such packet starts a new connection, or is forged while the
// connection is in use. So a later one is a repetition only if neither end has sent anything else
// since, and if the previous one was at least 0.5 s earlier. Repetitions on an open connection
// count only if gone is true: the backend is no longer an endpoint. An open connection of a backend
// that still exists is never moved to another backend.
func (h *Handle) Repeated(r Ref, now Time, gone bool) bool {
	f, t := h.Flow(r), now.Ticks()
	for {
		m := f.load()
		n, second := m, false
		switch {
		case !m.Live():
		case m.State() == SynSeen:
			n, second = m.Repeat(t.Since(Ticks(f.word())))
		case gone && m.State().Open():
			n, second = m.RepeatOpen(t)
		}
		if n == m {
			return second
		}
		if f.swap(m, n) {
			h.copyChanged(r)
			return second
		}
	}
}

// MarkRepeated makes the next repetition on a new flow count as the second, because the client has
// already repeated its opening packet towards another backend. With timers that double (1, 3, 7, 15
// s) the flow would otherwise expire before its second repetition.
func (h *Handle) MarkRepeated(r Ref) {
	f := h.Flow(r)
	for {
		m := f.load()
		if !m.Live() || m.State() != SynSeen || m&conn.MetaAgain != 0 || f.swap(m, m|conn.MetaAgain) {
			return
		}
	}
}

// Forsaken reports whether the client of an open connection has repeated its SYN towards a backend
// that is gone, and nothing else was seen since (Repeated).
func (h *Handle) Forsaken(r Ref) bool {
	m := h.Flow(r).load()
	return m.State() != SynSeen && m.Unanswered()
}

// Awaits reports whether an opening packet of the client waits for its answer.
func (h *Handle) Awaits(r Ref) bool {
	return h.Flow(r).load().Awaits()
}

// Abandon ends a flow without an answer (in SynSeen, or if Repeated returned true), so that its
// client can get another backend. Its backend's answers are recognised for 2 minutes (Abandoned),
// and its source port is the last that Create chooses towards this backend. It returns false, and
// does not change the flow, if the backend has answered meanwhile or the flow has ended: the
// client's packet then belongs to the flow that Lookup finds. An answer that another worker has
// looked up already, in its current batch, still reaches the client.
func (h *Handle) Abandon(r Ref, now Time) bool {
	a, i := h.arena(r&refV6 != 0), r.index()
	k := a.keyOf(i, ReplySide)
	hash, until := h.secret.hash(a.v6, &k), now.Ticks()+abandonedTicks
	for f := a.flow(i); ; {
		m := f.load()
		if !m.Unanswered() {
			return false
		}
		// Note the key before it is free. If the backend answers in between, its packets find the
		// flow, and Abandoned is not called for them.
		if !h.Direct(r) { // it has no port, and its answers do not come here
			h.t.abandoned.note(hash, until)
			h.t.restingOf(k.proto).begin(hash, until)
		}
		if h.kill(a, i, m, EndMoved) {
			return true
		}
	}
}

// Abandoned reports whether a packet with this hash (Hash), which belongs to no flow, is an answer
// to an abandoned one. It reports a false answer for at most one packet in 5 * 10^8. It does not
// recognise an answer after a restart, or after eight other flows of the same set were abandoned.
func (h *Handle) Abandoned(hash uint64, now Time) bool {
	return h.t.abandoned.has(hash, now.Ticks())
}

// abandoned remembers reply keys of abandoned flows, in 256 KiB: sets of one cache line, selected
// by the low bits of the key's hash. Each word has the upper half of the hash and the tick at which
// the entry expires.
type abandoned [1 << 12][8]atomic.Uint64

// note stores a key in the word that already has it, or else in the word that expires first. If two
// workers store at once, one key may be lost: then its answers count as strays.
func (a *abandoned) note(hash uint64, until Ticks) {
	set := &a[hash%uint64(len(a))]
	at := &set[0]
	for i := range set {
		w := set[i].Load()
		if w>>32 == hash>>32 {
			at = &set[i]
			break
		}
		if first := at.Load(); first != 0 && (w == 0 || Ticks(w).Since(Ticks(first)) < 0) {
			at = &set[i]
		}
	}
	at.Store(hash>>32<<32 | uint64(until))
}

func (a *abandoned) has(hash uint64, now Ticks) bool {
	set := &a[hash%uint64(len(a))]
	for i := range set {
		if w := set[i].Load(); w>>32 == hash>>32 && w != 0 && Ticks(w).Since(now) >= 0 {
			return true
		}
	}
	return false
}
