package flowtable

import (
	"sync/atomic"
	"time"
)

// A client repeats its SYN (or SCTP INIT) when nobody answers: 1 s after the first and
// then at doubling intervals (RFC 6298 section 2 and 5), or with Linux'
// net.ipv4.tcp_syn_linear_timeouts at 1, 2, 3 and 4 s. The second repetition is taken
// for a sign that the backend is dead. What the wire duplicates must not be: so a
// repetition counts only from some age of the flow on, and the second
// only some time after the first.
const (
	firstRepetition  = int32(500 * time.Millisecond / tick)  // least age of the flow
	secondRepetition = int32(1500 * time.Millisecond / tick) // least age of the flow
	repetitionGap    = int32(500 * time.Millisecond / tick)  // least time between the two
)

// abandonedTicks is how long answers to an abandoned flow are known: a backend on Linux
// repeats its SYN-ACK for 63 s (net.ipv4.tcp_synack_retries 5), and may begin late.
const abandonedTicks = ticks(120 * time.Second / tick)

// Repeated is to be called for each opening packet of a client (TCP SYN, SCTP INIT) on a
// flow that was there before. It returns true for the second repetition while nobody has
// answered (SynSeen): then the flow should be given to another backend. It returns
// true once in a flow's life, to one worker, and does not refresh the flow, whatever it returns.
//
// A repetition is the first if the flow is 0.5 s old, and the second if the flow is
// 1.5 s old and the first was 0.5 s before; others are copies of one packet. Where the
// flow is 25.5 s old at the first, a copy of that is the second.
func (h *Handle) Repeated(r Ref, now Time) bool {
	f := h.Flow(r)
	for age := now.ticks().since(f.created); ; {
		m := f.load()
		n, second := m.repeat(age)
		if n == m || f.swap(m, n) {
			return second
		}
	}
}

// repeat returns what m becomes by an opening packet at that age of the flow, and whether it
// is the second repetition.
func (m meta) repeat(age int32) (next meta, second bool) {
	switch {
	case !m.live() || m.state() != SynSeen || m&metaTold != 0:
		return m, false
	case m&metaAgain == 0 && age >= firstRepetition:
		return m | metaAgain | meta(min(age, 255))<<metaRepeatShift, false
	case m&metaAgain != 0 && age >= secondRepetition && age-int32(m>>metaRepeatShift) >= repetitionGap:
		return m | metaTold, true
	}
	return m, false
}

// Abandon ends a flow that nobody answered (SynSeen), so that its client can have another
// backend. Its backend's answers are known for 2 minutes (Abandoned), and its source port
// is the last that Create takes towards this backend. It returns false, and leaves the flow
// as it is, if the backend has answered meanwhile or the flow has ended: the client's
// packet then belongs to what Lookup finds. An answer that another worker has looked
// up already, in its current batch, still reaches the client.
func (h *Handle) Abandon(r Ref, now Time) bool {
	a, i := h.arena(r&refV6 != 0), r.index()
	k := a.keyOf(i, ReplySide)
	hash, until := h.secret.hash(a.v6, &k), now.ticks()+abandonedTicks
	for f := a.flow(i); ; {
		m := f.load()
		if !m.live() || m.state() != SynSeen {
			return false
		}
		// Before the key is free. If the backend answers in between, its packets
		// find the flow, and nobody asks whether they are late.
		h.t.abandoned.note(hash, until)
		h.t.resting.begin(hash, until)
		if h.kill(a, i, m) {
			return true
		}
	}
}

// Abandoned says whether a packet with this hash (Hash), which belongs to no flow, is an answer to
// an abandoned one. Other packets are taken for one once in 5 * 10^8 times at most; an answer
// is not known after a restart, nor if eight others of the same set were abandoned since.
func (h *Handle) Abandoned(hash uint64, now Time) bool {
	return h.t.abandoned.has(hash, now.ticks())
}

// abandoned remembers reply keys of abandoned flows, in 256 KiB: sets of one cache line,
// which the low bits of the key's hash choose. Each word is the upper half of the
// hash, as in resting, and the tick at which it is forgotten.
type abandoned [1 << 12][8]atomic.Uint64

// note puts a key where it is already, or instead of what is forgotten first. Of two who
// note at once, one may be lost: then its answers are strays.
func (a *abandoned) note(hash uint64, until ticks) {
	set := &a[hash%uint64(len(a))]
	at := &set[0]
	for i := range set {
		w := set[i].Load()
		if w>>32 == hash>>32 {
			at = &set[i]
			break
		}
		if first := at.Load(); first != 0 && (w == 0 || ticks(w).since(ticks(first)) < 0) {
			at = &set[i]
		}
	}
	at.Store(hash>>32<<32 | uint64(until))
}

func (a *abandoned) has(hash uint64, now ticks) bool {
	set := &a[hash%uint64(len(a))]
	for i := range set {
		if w := set[i].Load(); w>>32 == hash>>32 && w != 0 && ticks(w).since(now) >= 0 {
			return true
		}
	}
	return false
}
