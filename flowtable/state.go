package flowtable

import (
	"time"

	"sluice.dev/sluice/nat/header"
)

// State is a flow's state. Zero is no flow. The states of TCP are those of SCTP too, whose packets
// have the corresponding flags (header.Packet.TCPFlags).
type State uint8

const (
	None            State = iota
	SynSeen               // TCP: SYN seen
	SynRecv               // TCP: the backend answered, the client has not proven that it knows the answer
	Unconfirmed           // SCTP: the client acknowledged, the backend has not sent since
	Established           // TCP: handshake complete
	FinClient             // TCP: the client closed first
	FinBackend            // TCP: the backend closed first
	LastAckClient         // TCP: both sent FIN, the client first
	LastAckBackend        // TCP: both sent FIN, the backend first
	TimeWaitClient        // TCP: closed, the client first
	TimeWaitBackend       // TCP: closed, the backend first: it holds the port in TIME_WAIT
	Closed                // TCP: the backend refused
	UDPNew                // UDP: no reply yet
	UDPReplied            // UDP: the backend replied, the client has not sent since
	UDPAssured            // UDP: the client sent after a reply
	ICMPEcho              // ICMP queries
	NumStates             = iota

	_ uint = 16 - NumStates // meta has four bits for it
)

var stateNames = [NumStates]string{
	"NONE", "SYN_SENT", "SYN_RECV", "UNCONFIRMED", "ESTABLISHED", "FIN_CLIENT", "FIN_BACKEND", "LAST_ACK", "LAST_ACK",
	"TIME_WAIT", "TIME_WAIT", "CLOSED", "UDP_NEW", "UDP_REPLIED", "UDP_ASSURED", "ICMP",
}

// String returns the usual name, which does not show which side closed first.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "INVALID"
}

// HalfOpen reports whether the client has not acknowledged yet. The cap of half-open flows
// counts these, and no Unconfirmed ones: they may be open connections that are idle, as in a
// connection pool.
func (s State) HalfOpen() bool { return s == SynSeen || s == SynRecv }

// Stands reports whether both ends have spoken, and the client has heard the backend: a TCP or SCTP
// flow whose handshake is complete, also one that is over, or a UDP flow whose client spoke after a
// reply, which its sender may have guessed.
func (s State) Stands() bool {
	return s >= Established && s <= TimeWaitBackend || s == UDPAssured
}

// class is the class of a TCP packet by its flags.
type class uint8

const (
	classNone class = iota
	classACK
	classFIN
	classSYNACK
	classSYN
	classRST
	numClasses
)

// TCP flag bits, RFC 9293 section 3.1.
const (
	tcpFIN = 1 << 0
	tcpSYN = 1 << 1
	tcpRST = 1 << 2
	tcpACK = 1 << 4
)

// classOf reduces flags to a class: RST over SYN over FIN over ACK.
func classOf(flags uint8) class {
	switch {
	case flags&tcpRST != 0:
		return classRST
	case flags&(tcpSYN|tcpACK) == tcpSYN|tcpACK:
		return classSYNACK
	case flags&tcpSYN != 0:
		return classSYN
	case flags&tcpFIN != 0:
		return classFIN
	case flags&tcpACK != 0:
		return classACK
	}
	return classNone
}

// move is a transition: the next state in the low four bits, and effects. A change of state always
// refreshes the flow; refresh is for a packet that leaves the state as it is.
type move uint16

const (
	refresh move = 1 << 4  // refresh the flow
	reset   move = 1 << 5  // put the flow on the reset timer
	ask     move = 1 << 6  // remember the SYN
	answer  move = 1 << 7  // begin anew, if a SYN is remembered
	finish  move = 1 << 8  // remember the client's FIN until the backend sends
	confirm move = 1 << 9  // the backend sends: the client's packets were genuine
	prove   move = 1 << 10 // only if the segment proves that the connection is established
	restore move = 1 << 11 // data of the side that sent a FIN take the FIN back (restored)
)

// moves is the state machine: moves[state][side][class]. A packet without an entry leaves the flow
// as it is, without a refresh. Segments that change more than the time of the flow must have a good
// checksum (Changes). In particular: SYN and SYN-ACK never refresh (a lone retransmitted SYN must
// not hold a half-open flow).
//
// # What proves a handshake
//
// A sender that forges SYNs from foreign addresses can forge all that the client would send next.
// It does not receive the backend's SYN-ACK, and so does not know its sequence number. So in
// SynRecv a TCP flow keeps that number (Flow.created), and becomes Established by a client's
// segment that acknowledges it, and no more than it, or by data of the backend, which has
// established the connection then (TCP Fast Open, RFC 7413, included). Nothing else takes it out of
// SynRecv: not a backend's bare ACK, which may be the challenge to a second SYN (RFC 9293 section
// 3.10.7.4), nor its RST, which a forged ACK provokes too (ibid., SYN-RECEIVED). Of a connection
// that was set up before this flow, the backend's first packet is a bare ACK: then the client must
// acknowledge the sequence number of that.
//
// A client may reset its handshake and begin anew, and so may who forges it. The first time that
// makes the flow young again, later times do not: or it would be held, and be no candidate to give
// way, for three packets each second.
//
// SCTP has Unconfirmed in between: the client has sent its COOKIE ECHO, which only the server can
// verify. It answers the right one at once with COOKIE ACK (RFC 9260 section 5.1), and a forged one
// not at all. Until then the flow has the timeout of an open association, but gives way under
// pressure.
//
// # What may be forged on an open connection
//
// Sequence numbers of open connections are not tracked, so a FIN or an RST may be forged. An end
// that has closed its direction sends no new data, and an end that has sent or accepted an RST
// nothing at all. So:
//
//   - Data of a side that sent a FIN takes that FIN back. It is remembered, as the data may have
//     been overtaken by it, or be a retransmission: on an Established connection the other side's
//     FIN leads to LastAck then, and where both sides have sent one the flow gives way while it is
//     idle (bothFins), but has the timeout of the state.
//   - An RST changes no state, but starts a shorter timer (RFC 7857 section 2.2), which no packet
//     refreshes until one shows that the connection lives on (outlives).
//
// A SYN on a connection that is open may be forged as well, or the client may have
// lost the connection (RFC 9293 section 3.5.1). Only the backend knows, so the SYN is forwarded to
// it, and remembered; the state does not change. A backend that has the connection sends a
// challenge ACK (RFC 5961 section 4), which clears the remembered SYN. A backend that has not sends
// a SYN-ACK: the handshake begins anew, on the same flow. A forged SYN-ACK is forwarded to the
// client, whose ACK undoes it. A backend's RST is no answer: a sender that forged the SYN could
// forge it too.
//
// # SCTP
//
// An SCTP association (RFC 9260 sections 5.1 and 9.2) takes the same states:
//
//	INIT               SynSeen        SHUTDOWN           FinClient
//	INIT ACK           SynRecv        SHUTDOWN ACK       LastAckClient
//	COOKIE ECHO        Unconfirmed    SHUTDOWN COMPLETE  TimeWaitClient
//	COOKIE ACK         Established    ABORT              as an RST
//
// with four differences. Unconfirmed is as said above. Heartbeats, 30 s apart and answered (section
// 8.3), are ACKs that keep an idle association. There is no half-closed association: after a
// SHUTDOWN the other end sends its remaining data and answers with SHUTDOWN ACK. After SHUTDOWN
// COMPLETE no TIME_WAIT is needed, because verification tags identify old packets, but the flow
// gets it. And an endpoint answers an INIT on an open association with INIT ACK, whether or not it
// is forged, and continues until a valid COOKIE ECHO (section 5.2.2): see answered.
var moves = makeMoves()

func makeMoves() (m [NumStates][2][numClasses]move) {
	for s := range m {
		for side := range m[s] {
			for c := range m[s][side] {
				m[s][side][c] = move(s)
			}
		}
	}
	both := func(s State, c class, mv move) { m[s][ClientSide][c], m[s][ReplySide][c] = mv, mv }

	// The handshake. A backend that answers a SYN with a bare ACK has an older connection (RFC 9293
	// section 3.10.7.4, challenge ACK); one that answers a mid-flow packet with an ACK continues a
	// connection that was set up before this flow.
	m[SynSeen][ReplySide][classSYNACK] = move(SynRecv)
	m[SynSeen][ReplySide][classACK] = move(SynRecv)
	m[SynSeen][ReplySide][classFIN] = move(SynRecv)
	m[SynRecv][ClientSide][classACK] = move(Established) | prove
	m[SynRecv][ClientSide][classFIN] = move(FinClient) | prove
	m[SynRecv][ReplySide][classACK] = move(Established) | prove
	m[SynRecv][ReplySide][classFIN] = move(FinBackend) | prove
	m[Unconfirmed][ClientSide][classACK] = move(Unconfirmed) | refresh
	m[Unconfirmed][ClientSide][classFIN] = move(Unconfirmed) | refresh | finish
	m[Unconfirmed][ClientSide][classRST] = move(Unconfirmed) | reset
	m[Unconfirmed][ReplySide][classACK] = move(Established) | refresh | confirm
	m[Unconfirmed][ReplySide][classFIN] = move(FinBackend) | confirm
	m[Unconfirmed][ReplySide][classRST] = move(Closed)
	m[SynSeen][ReplySide][classRST] = move(Closed)
	m[SynSeen][ClientSide][classRST] = move(SynSeen) | reset
	both(SynRecv, classRST, move(SynRecv)|reset)
	m[Closed][ReplySide][classSYNACK] = move(SynRecv) // the RST was the answer to a forged segment

	// Data, and the closing of one direction.
	for _, s := range []State{Established, FinClient, FinBackend} {
		both(s, classACK, move(s)|refresh)
		both(s, classFIN, move(s)|refresh)
		both(s, classRST, move(s)|reset)
	}
	for _, s := range []State{SynRecv, Unconfirmed, Established, FinClient, FinBackend} {
		m[s][ClientSide][classSYN] = move(s) | ask
		m[s][ReplySide][classSYNACK] = move(SynRecv) | answer
	}
	m[Established][ClientSide][classFIN] = move(FinClient)
	m[Established][ReplySide][classFIN] = move(FinBackend)
	m[FinClient][ClientSide][classACK] = move(FinClient) | refresh | restore
	m[FinBackend][ReplySide][classACK] = move(FinBackend) | refresh | restore
	m[FinClient][ReplySide][classFIN] = move(LastAckClient)
	m[FinBackend][ClientSide][classFIN] = move(LastAckBackend)

	// Both directions closed. The last ACK comes from the end that closed first.
	for _, s := range []State{LastAckClient, LastAckBackend} {
		both(s, classACK, move(s)|refresh)
		both(s, classFIN, move(s)|refresh)
		both(s, classRST, move(s)|reset)
	}
	m[LastAckClient][ClientSide][classACK] = move(TimeWaitClient)
	m[LastAckBackend][ReplySide][classACK] = move(TimeWaitBackend)

	// A retransmitted FIN means that the last ACK was lost (RFC 9293 section 3.10.7.8). And the ACK
	// that was taken for the last may have acknowledged data before the FIN, with a window of data
	// still to be sent or retransmitted. A connection that is over sends no ACKs, so each ACK
	// refreshes the flow.
	for _, s := range []State{TimeWaitClient, TimeWaitBackend} {
		both(s, classACK, move(s)|refresh)
		both(s, classFIN, move(s)|refresh)
	}
	for _, s := range []State{LastAckClient, LastAckBackend, TimeWaitClient, TimeWaitBackend} {
		m[s][ClientSide][classACK] |= restore
		m[s][ReplySide][classACK] |= restore
	}
	return m
}

// initial is the state of a new flow.
func initial(proto uint8) State {
	switch proto {
	case header.ProtoTCP, header.ProtoSCTP:
		return SynSeen
	case header.ProtoICMP, header.ProtoICMPv6:
		return ICMPEcho
	}
	return UDPNew
}

// refreshTicks is how old last seen may be before a packet renews it.
const refreshTicks = int32(time.Second / tick)

// observe returns m as changed by a packet at time now; m itself if nothing need be written. isn is
// the backend's initial sequence number, where m is provable.
func (m meta) observe(from Side, s Segment, isn uint32, now ticks) meta {
	if m.seen()-now < 1<<31 {
		now = m.seen() // another worker's batch is later than ours: never step back
	}
	if !header.Stateful(m.proto()) {
		return m.observeDatagram(from, s.Later, now)
	}
	c := s.class()
	mv := moves[m.state()][from&1][c]
	switch {
	case mv&prove != 0:
		mv = m.proof(mv, from, &s, isn, now)
	case m.reset() && m.state() > SynRecv && (c == classACK || c == classFIN):
		if !m.outlives(from, &s, now) {
			return m
		}
	case mv&answer != 0 && m.provable() && s.Seq == isn:
		return m // the same SYN-ACK again: with the SYN before it, it would hold the flow
	}
	if mv&restore != 0 && s.Data {
		return m.restored(from).at(now)
	}
	return m.take(mv, from, now)
}

// take returns m as changed by a move of a packet from one side.
func (m meta) take(mv move, from Side, now ticks) meta {
	next := State(mv & 15)
	switch {
	case mv&confirm != 0:
		next = m.confirmed(next)
	case m.state() == Established && m&finOf(from^1) != 0:
		next = next.otherFin(from)
	}
	note := meta(0)
	if mv&finish != 0 {
		note = metaFin
	}
	switch {
	case mv&ask != 0:
		if m.state() == SynRecv && !m.reset() {
			return m // the same SYN again: with its answer it would hold the flow
		}
		return m | metaAgain
	case mv&answer != 0:
		switch {
		case m&metaAgain == 0:
			return m
		case m.state() == SynRecv && m&metaRenewed != 0:
			return m &^ metaAgain
		case m.state() == SynRecv:
			return m.at(now)&^metaNotes | metaRenewed
		}
		return m.answered(next).at(now) &^ metaNotes
	case next != m.state():
		return m.withState(next).at(now)&^metaNotes | note
	case mv&reset != 0 && !m.reset():
		// The timer starts with the first RST, later ones do not move it. A handshake that has
		// begun anew once has had it.
		if m.state() == SynRecv && m&metaRenewed != 0 {
			now = m.seen()
		}
		return m.at(now)&^metaResetBackend | metaReset | meta(from)<<metaFlagsShift
	case note&^m != 0:
		return m.at(now)&^metaNotes | note
	case mv&refresh != 0 && (m&metaCleared != 0 || now.since(m.seen()) >= refreshTicks):
		return m.refreshed(now)
	}
	return m
}

// usedSeconds returns in how many seconds an assured UDP flow had packets, up to 256, or 16 while
// its datagrams are counted.
func (m meta) usedSeconds() int32 {
	if m&metaQuestions != 0 {
		return 1 + int32(m&metaCountedUsed>>metaCountedUsedShift)
	}
	return 1 + int32(m&metaUsed>>metaUsedShift)
}

// refreshed returns a flow that stays in its state and has no notes, refreshed. It is for once a
// second; of assured UDP it counts that second.
func (m meta) refreshed(now ticks) meta {
	if m.state() == UDPAssured {
		if m&metaUsed != metaUsed {
			m += 1 << metaUsedShift
		}
		return m.at(now)
	}
	return m.at(now) &^ (metaCleared | metaResetBackend)
}

// provable reports whether a flow waits for proof that its connection is established, and has the
// backend's initial sequence number for it.
func (m meta) provable() bool { return m.state() == SynRecv && m.proto() == header.ProtoTCP }

// proof returns the move of a segment that may prove a handshake: mv if it does, and a move that
// changes nothing if not. For an association it is the move of a COOKIE ECHO.
func (m meta) proof(mv move, from Side, s *Segment, isn uint32, now ticks) move {
	ok := s.Ack == isn+1
	if from == ReplySide {
		ok = s.Data && (!m.reset() || m.outlives(from, s, now))
	}
	switch {
	case m.proto() == header.ProtoSCTP && from == ReplySide:
		return move(SynRecv)
	case m.proto() == header.ProtoSCTP && s.class() == classFIN:
		return move(Unconfirmed) | finish
	case m.proto() == header.ProtoSCTP:
		return move(Unconfirmed)
	case ok:
		return mv
	}
	return move(SynRecv)
}

// resetGrace is how long after an RST packets may still arrive that were under way. A younger RST
// makes its flow no candidate to give way: it may be forged.
const resetGrace = int32(time.Second / tick)

// resetBy returns which side sent the RST of a flow that is reset.
func (m meta) resetBy() Side { return Side(m >> metaFlagsShift & 1) }

// outlives reports whether a segment that is neither SYN nor RST shows that an RST did not end the
// connection. The end that sent it, if it was not forged, has no data to send. The end that
// accepted it sends nothing, but for what was under way. The client's ACK shows nothing: without
// data it may be forged to hold a connection that the client, which did not ask for it, has reset.
func (m meta) outlives(from Side, s *Segment, now ticks) bool {
	late := now.since(m.seen()) >= resetGrace
	return s.Data && (late || from == m.resetBy()) || from == ReplySide && late
}

// finOf returns the note that a side sent a FIN and data after it.
func finOf(from Side) meta { return metaFinClient << from }

// restored returns m after data of a side that has sent a FIN. The other side's FIN, if it has sent
// one, stands until its own data.
func (m meta) restored(from Side) meta {
	next, fins := Established, m&metaFins|finOf(from)
	if m.state() >= LastAckClient {
		next = finStates[from^1]
	}
	return m.withState(next)&^metaNotes | fins
}

// finStates are the states of a connection that one side has closed.
var finStates = [2]State{ClientSide: FinClient, ReplySide: FinBackend}

// bothFins reports whether both sides of a connection that is open have sent a FIN, and one of them
// data after it, or both have.
func (m meta) bothFins() bool {
	switch m.state() {
	case Established:
		return m&metaFins == metaFins
	case FinClient:
		return m&metaFinBackend != 0
	case FinBackend:
		return m&metaFinClient != 0
	}
	return false
}

// otherFin returns the state after a FIN of a side on an Established connection whose other side
// has sent one as well.
func (s State) otherFin(from Side) State {
	switch {
	case s == FinClient && from == ClientSide:
		return LastAckBackend
	case s == FinBackend && from == ReplySide:
		return LastAckClient
	}
	return s
}

// answered returns m after the backend's SYN-ACK, for a flow on which a SYN is remembered. An SCTP
// server sends INIT ACK to a forged INIT too, and keeps no state. So an open association stays in
// its state: otherwise one INIT would give it the timeout of a handshake, which is less than the
// time between two heartbeats. An association that is restarted continues in that state.
func (m meta) answered(next State) meta {
	if s := m.state(); m.proto() == header.ProtoSCTP && (s == Unconfirmed || s == Established) {
		return m
	}
	return m.withState(next)
}

// confirmed returns the state of an Unconfirmed flow after a packet of the backend: next if its
// client has sent nothing but ACKs, and other states if it has sent FIN or SYN.
func (m meta) confirmed(next State) State {
	switch {
	case next == Established && m&metaAgain != 0:
		return Unconfirmed
	case next == Established && m&metaFin != 0:
		return FinClient
	case m&metaFin != 0:
		return LastAckClient
	}
	return next
}

// Changes reports whether a segment with a good checksum would change the flow by more than the
// time at which it was last seen. Of a segment that would, the caller verifies the checksum before
// it calls Observe.
func (h *Handle) Changes(r Ref, from Side, s Segment, now Time) bool {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	return m.live() && f.changedBy(m, m.observe(from, s, word, now.ticks()), from, &s, word)
}

// changedBy reports whether the step from m to n, or the number that is kept with it, is more than
// a refresh.
func (f *Flow) changedBy(m, n meta, from Side, s *Segment, word uint32) bool {
	isn, ok := f.answeredBy(m, n, from, s)
	return n.at(0) != m.at(0) || ok && isn != word
}

// answeredBy returns the backend's initial sequence number, if the step from m to n is by a segment
// that has it: a SYN-ACK, or an ACK or a FIN without data, whose sequence number follows it. The
// last one counts: a backend may send two SYN-ACKs with different numbers (SYN cookies a minute
// apart, a stack that keeps no half-open connections), and only its next ACK shows which of them
// the client has acknowledged. An RST shows nothing: its sequence number is the one that a forged
// ACK has acknowledged (RFC 9293 section 3.10.7.1). A number that is known is replaced only by a
// segment that acknowledges the flow's SYN: the source port may have been another client's, whose
// segments can be late.
func (f *Flow) answeredBy(m, n meta, from Side, s *Segment) (isn uint32, ok bool) {
	if from == ClientSide || !n.provable() || m.state() != SynSeen && !f.acknowledgesSYN(m, s) {
		return 0, false
	}
	switch c := s.class(); c {
	case classSYNACK:
		return s.Seq, true
	default:
		return s.Seq - 1, m.state() == SynSeen || c == classACK || c == classFIN
	}
}

// Observe updates the flow by one of its packets, and reports whether the flow stands since
// (State.Stands). It writes at most once a second, when the state changes, and for each of the
// first datagrams of a UDP flow (countedDatagrams).
func (h *Handle) Observe(r Ref, from Side, s Segment, now Time) (stands bool) {
	f := h.Flow(r)
	for t := now.ticks(); ; {
		// The word before meta: where another handle changes both in between, the swap of either
		// fails.
		word := f.word()
		m := f.load()
		if !m.live() {
			return false
		}
		n := m.observe(from, s, word, t)
		if s.Unverified && header.Stateful(m.proto()) && f.changedBy(m, n, from, &s, word) {
			return false
		}
		if n != m && !f.swap(m, n) {
			continue
		}
		if isn, ok := f.answeredBy(m, n, from, &s); ok {
			f.swapWord(word, isn)
		} else if m.provable() && !n.provable() {
			f.swapWord(word, uint32(t))
		}
		if (n^m)&metaAccounted != 0 {
			h.moved(r, m, n)
			return n.state().Stands() && !m.state().Stands()
		}
		return
	}
}

// Idle returns how long ago the flow was last seen, to a second.
func (h *Handle) Idle(r Ref, now Time) time.Duration {
	return span(h.Flow(r).load().seen(), now.ticks())
}

// Closing reports whether a client's SYN on this flow opens a new connection, which
// is scheduled anew: the old one is over on both sides. A connection that saw an
// RST is not: the RST may be forged, and the SYN with it.
func (h *Handle) Closing(r Ref) bool {
	switch h.Flow(r).State() {
	case None, LastAckClient, LastAckBackend, TimeWaitClient, TimeWaitBackend, Closed:
		return true
	}
	return false
}
