package conn

import "time"

// A client repeats its SYN (or SCTP INIT) if it gets no answer: 1 s after the first and then at
// doubling intervals (RFC 6298 section 2 and 5), or with Linux' net.ipv4.tcp_syn_linear_timeouts at
// 1, 2, 3 and 4 s. The table takes the second repetition as a sign that the backend is dead.
// Duplicates made by the network must not count as repetitions, so each repetition has a minimum
// age of the flow, and there is a minimum time between the two.
const (
	firstRepetition  = int32(500 * time.Millisecond / Tick)  // least age of the flow
	secondRepetition = int32(1500 * time.Millisecond / Tick) // least age of the flow
	repetitionGap    = int32(500 * time.Millisecond / Tick)  // least time between the two
)

// Repeat returns m, in SynSeen, as changed by an opening packet at the given age of the flow, and
// whether the packet is the second repetition or a later one.
func (m Meta) Repeat(age int32) (next Meta, second bool) {
	first, note := m&MetaAgain == 0, Meta(max(0, min(age, 255)))<<MetaRepeatShift
	switch {
	case first && age >= firstRepetition:
		return m | MetaAgain | note, false
	case !first && age >= secondRepetition && age-int32(m>>MetaRepeatShift) >= repetitionGap:
		return m&^MetaRepeat | note, true
	}
	return m, false
}

// On an open connection, repeat holds the time of the last opening packet, as 1 + ticks modulo
// openTicks, and openRepeated from the first repetition on.
const (
	openTicks    = 127
	openRepeated = 1 << 7
)

// RepeatOpen is Repeat on an open connection. A repetition within 0.4 s of a multiple of 12.7 s
// after the previous one counts as a copy of that one.
func (m Meta) RepeatOpen(now Ticks) (next Meta, second bool) {
	last, stamp := uint8(m>>MetaRepeatShift), Meta(1+now%openTicks)
	if last == 0 {
		return m | stamp<<MetaRepeatShift, false
	}
	// Another worker's batch may be later than this one: then the gap is negative.
	gap := (int32(now%openTicks) - int32(last&^openRepeated-1) + openTicks) % openTicks
	if gap < repetitionGap || gap > openTicks-repetitionGap {
		return m, false
	}
	return m&^MetaRepeat | (stamp|openRepeated)<<MetaRepeatShift, last&openRepeated != 0
}

// Asked reports whether the client has sent an opening packet towards a backend that is gone, since
// the last other packet of the open connection (RepeatOpen).
func (m Meta) Asked() bool { return m.State().Open() && m&MetaRepeat != 0 }

// Unanswered reports whether a flow may be abandoned.
func (m Meta) Unanswered() bool {
	return m.Live() && (m.State() == SynSeen || m.State().Open() && m&(openRepeated<<MetaRepeatShift) != 0)
}

// Awaits reports whether an opening packet of the client waits for its answer.
func (m Meta) Awaits() bool {
	return m.Live() && (m.State() == SynSeen || m.State().Open() && m&MetaAgain != 0)
}
