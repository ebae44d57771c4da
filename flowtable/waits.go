package flowtable

import (
	"sync/atomic"
	"time"

	"sluice.dev/sluice/flowtable/conn"
)

// Wait is a step of a flow that waits for the backend.
type Wait uint8

const (
	NoWait Wait = iota
	// Handshake: TCP, the client's first SYN to the backend's SYN-ACK; SCTP, INIT to INIT ACK.
	Handshake
	// Answer: UDP, the client's first datagram to the backend's first. TCP, the client's first
	// payload to the backend's first; the wait begins with the end of the handshake if the backend
	// sends first.
	Answer
)

// Observed is the result of an Observe, apart from the flow's new state.
type Observed struct {
	// Wait ended by the packet, and its duration. NoWait: the packet ended none, or the duration is
	// not known.
	Wait    Wait
	Elapsed time.Duration
	// Reset: the packet is the first RST of a TCP connection to which the backend has agreed, and
	// which no end has closed.
	Reset bool
}

// Observed returns the result of the last Observe. It has waits only after MeasureWaits.
func (h *Handle) Observed() *Observed { return &h.observed }

// MeasureWaits makes the handle measure how long flows wait for their backend. Create begins the
// wait of a new flow, and any handle that measures waits may end it.
func (h *Handle) MeasureWaits() {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if h.t.waits == nil {
		h.t.waits = new(waits)
	}
	h.waits = h.t.waits
}

// waits has the clocks of flows that wait, in 1 MiB: sets of one cache line, by the low bits of the
// Ref. It is lost with the process: a flow that waits at that time is not measured. When a flow
// gets its answer, its clock is free again. If eight younger flows of the same set wait, the flow
// is not measured: records are used in turn, so this takes about 100,000 flows that wait at once.
type waits [1 << setBits][8]atomic.Uint64

const setBits = 14

// clock is a word of waits; 0: none.
//
//	63      62        46 45               8   7   6       0
//	[valid][ Ref, high ][ time, microseconds ][asked][packets ]
//
// time is when the wait began. asked and packets are used for established connections: asked means
// that the client has sent payload; packets counts the packets seen while the answer is timed.
type clock uint64

const (
	clockValid   clock = 1 << 63
	refShift           = 46
	timeShift          = 8
	clockTime    clock = 1<<refShift - 1<<timeShift
	clockAsked   clock = 1 << 7
	clockPackets       = clockAsked - 1

	// maxTimedPackets bounds the packets of a connection that do not pass the plain path while its
	// answer is measured: a client may upload for minutes before the backend answers.
	maxTimedPackets = clockPackets

	// maxWait is the longest wait that is measured.
	maxWait = time.Minute
)

// A Ref has 31 bits: the clock has all bits but the number of its set.
const _ = -(refShift + 31 - setBits ^ 63)

func owner(r Ref) clock { return clockValid | clock(r)>>setBits<<refShift }

func makeClock(r Ref, now Time, asked bool) clock {
	return owner(r) | clock(now/Time(time.Microsecond))<<timeShift&clockTime | clock(b2i(asked))*clockAsked
}

// since returns the time from other to c. It is 0 if other is later, because another worker's batch
// may be later than this one. Times wrap after three days.
func (c clock) since(other clock) time.Duration {
	const unused = 64 - refShift
	micros := int64((c&clockTime-other&clockTime)<<unused) >> (unused + timeShift)
	return max(0, time.Duration(micros)*time.Microsecond)
}

func (w *waits) set(r Ref) *[8]atomic.Uint64 { return &w[uint32(r)%uint32(len(w))] }

// start sets the clock of a flow. Loads and stores publish only the word itself.
func (w *waits) start(r Ref, c clock) {
	set, free := w.set(r), -1
	for i := range set {
		old := clock(set[i].Load())
		if (old^c)>>refShift == 0 { // the flow's own
			set[i].Store(uint64(c))
			return
		}
		if old == 0 {
			free = i
		}
	}
	if free < 0 {
		free = c.oldest(set)
	}
	set[free].Store(uint64(c))
}

// oldest returns the index of the clock in a set that began first.
func (c clock) oldest(set *[8]atomic.Uint64) (at int) {
	age := time.Duration(-1)
	for i := range set {
		if d := c.since(clock(set[i].Load())); d > age {
			at, age = i, d
		}
	}
	return at
}

// find returns the word of a flow, or nil, and its clock.
func (w *waits) find(r Ref) (*atomic.Uint64, clock) {
	set, own := w.set(r), owner(r)>>refShift
	for i := range set {
		if c := clock(set[i].Load()); c>>refShift == own {
			return &set[i], c
		}
	}
	return nil, 0
}

// stop returns how long a flow has waited, and frees its clock. It returns false if the flow has no
// clock, if another handle was faster, or if the wait was too long.
func (w *waits) stop(r Ref, now Time) (time.Duration, bool) {
	word, c := w.find(r)
	if word == nil || !word.CompareAndSwap(uint64(c), 0) {
		return 0, false
	}
	d := makeClock(r, now, false).since(c)
	return d, d <= maxWait
}

// A handle measures at most one answer of TCP per answerEvery, and answersAtOnce of them at once:
// the packets of these flows do not pass the plain path.
const (
	answerEvery   = Time(time.Millisecond)
	answersAtOnce = 64
)

// mayTime reports whether the handle may time another TCP connection.
func (h *Handle) mayTime(now Time) bool {
	if h.waits == nil || h.nextTimed > now {
		return false
	}
	h.nextTimed = max(h.nextTimed, now-min(now, (answersAtOnce-1)*answerEvery)) + answerEvery
	return true
}

// measure begins, continues or ends to time a TCP connection. n is the result of a packet for m; it
// returns n with or without the note of a timed connection.
func (h *Handle) measure(r Ref, m, n conn.Meta, from Side, s *Segment, now Time) conn.Meta {
	switch {
	case m.Opens(n, from) && h.mayTime(now):
		h.waits.start(r, makeClock(r, now, s.Data))
		return n.MakeTimed()
	case !m.Timed() || !n.Timed():
		return n
	case n.Reset() || h.waits == nil || from == ReplySide && s.Payload():
		return n.Untimed()
	}
	word, c := h.waits.find(r)
	switch at := makeClock(r, now, true); {
	case word == nil || at.since(c) > maxWait || c&clockPackets == maxTimedPackets:
		return n.Untimed()
	case from == ClientSide && s.Payload() && c&clockAsked == 0:
		word.CompareAndSwap(uint64(c), uint64(at))
	default:
		word.CompareAndSwap(uint64(c), uint64(c+1))
	}
	return n
}

// answered notes the wait ended by a backend's packet, which changed m to n.
func (h *Handle) answered(r Ref, m, n conn.Meta, s *Segment, now Time) {
	wait := NoWait
	switch {
	case m.State() == SynSeen && n.State() == SynRecv && s.SYNACK():
		wait = Handshake
	case m.State() == UDPNew && n.State() == UDPReplied, m.Timed() && !n.Timed() && s.Payload():
		wait = Answer
	default:
		return
	}
	if elapsed, ok := h.waits.stop(r, now); ok {
		h.observed.Wait, h.observed.Elapsed = wait, elapsed
	}
}
