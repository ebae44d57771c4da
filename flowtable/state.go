package flowtable

import (
	"time"

	"sluice.dev/sluice/nat/header"
)

// State is a flow's state. Zero is no flow. SCTP uses the states of TCP: its packets have the
// corresponding flags (header.Packet.TCPFlags).
type State uint8

const (
	None            State = iota
	SynSeen               // TCP: SYN seen
	SynRecv               // TCP: the backend answered, the client has not proven that it knows the answer
	Unconfirmed           // SCTP: the client acknowledged, and the backend has sent nothing since
	Established           // TCP: handshake complete
	FinClient             // TCP: the client closed first
	FinBackend            // TCP: the backend closed first
	LastAckClient         // TCP: both sent FIN, the client first
	LastAckBackend        // TCP: both sent FIN, the backend first
	TimeWaitClient        // TCP: closed, the client first
	TimeWaitBackend       // TCP: closed, the backend first: it holds the port in TIME_WAIT
	Closed                // TCP: the backend rejected the connection
	UDPNew                // UDP: no reply yet
	UDPReplied            // UDP: the backend replied, and the client has sent nothing since
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

// HalfOpen reports whether the client has not acknowledged yet. The cap of half-open flows does not
// count Unconfirmed flows: they may be open connections that are idle, as in a connection pool.
func (s State) HalfOpen() bool { return s == SynSeen || s == SynRecv }

// Stands reports whether both ends have sent packets, and the client has received the backend's: a
// TCP or SCTP flow whose handshake is complete, even if the connection is over, or a UDP flow whose
// client sent after a reply. A forger may have guessed when the reply came.
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
// refreshes the flow; refresh is for a packet that does not change the state.
type move uint16

const (
	refresh move = 1 << 4  // refresh the flow
	reset   move = 1 << 5  // put the flow on the reset timer
	ask     move = 1 << 6  // remember the SYN
	answer  move = 1 << 7  // restart the handshake, if a SYN is remembered
	finish  move = 1 << 8  // remember the client's FIN until the backend sends
	confirm move = 1 << 9  // the backend sent, so the client's packets were genuine
	prove   move = 1 << 10 // applies only if the segment proves that the connection is established
	restore move = 1 << 11 // data of the side that sent a FIN revokes the FIN (restored)
)

// moves is the state machine: moves[state][side][class]. A packet without an entry neither changes
// nor refreshes the flow. A segment that changes more than the flow's last-seen time must have a
// good checksum (Changes). SYN and SYN-ACK never refresh: retransmitted SYNs alone must not keep a
// half-open flow.
//
// # Proof of a handshake
//
// A sender that forges SYNs from addresses of others can also forge all later packets of the
// client. But it does not receive the backend's SYN-ACK, and so does not know its sequence number.
// So in SynRecv a TCP flow keeps that number (Flow.created). It becomes Established by a client's
// segment that acknowledges exactly the SYN-ACK, or by data of the backend, which has then
// established the connection (also by TCP Fast Open, RFC 7413). No other segment moves it out of
// SynRecv: neither a backend's bare ACK, which may be the challenge to a second SYN (RFC 9293
// section 3.10.7.4), nor the backend's RST, which a forged ACK provokes too (ibid., SYN-RECEIVED).
// If the connection was set up before this flow, the backend's first packet is a bare ACK: then the
// client must acknowledge the sequence number of that ACK.
//
// A client may reset its handshake and start again; so may an attacker who forges its segments.
// Only the first restart makes the flow young again. Otherwise three packets each second would keep
// the flow and protect it from being shed.
//
// SCTP has the state Unconfirmed in between: the client has sent its COOKIE ECHO, which only the
// server can verify. The server answers a valid COOKIE ECHO at once with COOKIE ACK (RFC 9260
// section 5.1), and does not answer a forged one. Until then the flow has the timeout of an open
// association, but it may be shed under pressure.
//
// # Forged segments on an open connection
//
// The table does not track sequence numbers of open connections, so a FIN or an RST may be forged.
// But an end that has closed its direction sends no new data, and an end that has sent or accepted
// an RST sends nothing at all. So:
//
//   - Data of a side that sent a FIN revokes the FIN. The flow remembers the FIN, because the FIN
//     may have overtaken the data, or the data may be a retransmission. On an Established
//     connection the other side's FIN then leads to LastAck. If both sides have sent a FIN, the
//     flow may be shed while it is idle (bothFins), but it keeps the timeout of its state.
//   - An RST changes no state, but starts a shorter timer (RFC 7857 section 2.2). No packet
//     refreshes that timer unless it shows that the connection lives on (outlives).
//
// A SYN on an open connection may be forged as well, or the client may have lost the connection
// (RFC 9293 section 3.5.1). Only the backend knows, so the worker forwards the SYN and remembers it
// in the flow; the state does not change. A backend that still has the connection sends a challenge
// ACK (RFC 5961 section 4), which clears the remembered SYN. A backend that has lost it sends a
// SYN-ACK: the handshake restarts on the same flow. A forged SYN-ACK is forwarded to the client,
// whose ACK undoes its effect. A backend's RST is no answer: a sender that forged the SYN could
// forge the RST too.
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
// with four differences. Unconfirmed is described above. Heartbeats, 30 s apart and answered
// (section 8.3), are ACKs that keep an idle association. There is no half-closed association: after
// a SHUTDOWN the other end sends its remaining data and answers with SHUTDOWN ACK. After SHUTDOWN
// COMPLETE no TIME_WAIT is needed, because verification tags identify old packets, but the flow
// gets it. And an endpoint answers an INIT on an open association with INIT ACK, even if the INIT
// is forged, and keeps the association until a valid COOKIE ECHO (section 5.2.2): see answered.
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
	// section 3.10.7.4, challenge ACK). A backend that answers a mid-flow packet with an ACK
	// continues a connection that was set up before this flow.
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
	// that ended the connection here may have acknowledged only data before the FIN, with a window
	// of data still to be sent or retransmitted. A connection that is over sends no ACKs, so each
	// ACK refreshes the flow.
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

// refreshTicks is the age of last seen from which a packet renews it.
const refreshTicks = int32(time.Second / tick)

// observe returns m as changed by a packet at time now, or m itself if nothing need be written. isn
// is the backend's initial sequence number if m is provable.
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
		return m // a repeated SYN-ACK: together with a repeated SYN it would keep the flow alive
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
			return m // a repeated SYN: together with its answer it would keep the flow alive
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
		// The timer starts with the first RST; later ones do not restart it. A handshake that has
		// been restarted has used its one timer.
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

// usedSeconds returns the number of seconds in which an assured UDP flow had packets, up to 256, or
// up to 16 while its datagrams are counted.
func (m meta) usedSeconds() int32 {
	if m&metaQuestions != 0 {
		return 1 + int32(m&metaCountedUsed>>metaCountedUsedShift)
	}
	return 1 + int32(m&metaUsed>>metaUsedShift)
}

// refreshed returns m with a new last-seen time, the same state and no notes. It is called at most
// once a second; for assured UDP it counts that second.
func (m meta) refreshed(now ticks) meta {
	if m.state() == UDPAssured {
		if m&metaUsed != metaUsed {
			m += 1 << metaUsedShift
		}
		return m.at(now)
	}
	return m.at(now) &^ (metaCleared | metaResetBackend)
}

// provable reports whether a flow waits for proof that its connection is established, and keeps the
// backend's initial sequence number to verify it.
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

// resetGrace is how long after an RST packets in flight may still arrive. A flow with a younger RST
// is not shed for it: the RST may be forged.
const resetGrace = int32(time.Second / tick)

// resetBy returns the side that sent the RST of a reset flow.
func (m meta) resetBy() Side { return Side(m >> metaFlagsShift & 1) }

// outlives reports whether a segment that is neither SYN nor RST shows that an RST did not end the
// connection. An end that sent a genuine RST has no data to send. An end that accepted the RST
// sends nothing more, but its packets in flight may still arrive. A client's ACK without data shows
// nothing: it may be forged, to keep a connection that the client never opened and so has reset.
func (m meta) outlives(from Side, s *Segment, now ticks) bool {
	late := now.since(m.seen()) >= resetGrace
	return s.Data && (late || from == m.resetBy()) || from == ReplySide && late
}

// finOf returns the note that a side sent a FIN and then data.
func finOf(from Side) meta { return metaFinClient << from }

// restored returns m after data of a side that has sent a FIN. If the other side has sent a FIN,
// that FIN remains valid until the other side sends data.
func (m meta) restored(from Side) meta {
	next, fins := Established, m&metaFins|finOf(from)
	if m.state() >= LastAckClient {
		next = finStates[from^1]
	}
	return m.withState(next)&^metaNotes | fins
}

// finStates are the states of a connection that one side has closed.
var finStates = [2]State{ClientSide: FinClient, ReplySide: FinBackend}

// bothFins reports whether both sides of an open connection have sent a FIN, and at least one of
// them has sent data after its FIN.
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

// otherFin returns the state after a FIN from one side on an Established connection whose other
// side has sent a FIN as well.
func (s State) otherFin(from Side) State {
	switch {
	case s == FinClient && from == ClientSide:
		return LastAckBackend
	case s == FinBackend && from == ReplySide:
		return LastAckClient
	}
	return s
}

// answered returns m after the backend's SYN-ACK, for a flow that remembers a SYN. An SCTP server
// sends INIT ACK to a forged INIT too, and keeps no state. So an open association stays in its
// state: otherwise one INIT would give it the timeout of a handshake, which is less than the time
// between two heartbeats. An association that is restarted continues in that state.
func (m meta) answered(next State) meta {
	if s := m.state(); m.proto() == header.ProtoSCTP && (s == Unconfirmed || s == Established) {
		return m
	}
	return m.withState(next)
}

// confirmed returns the state of an Unconfirmed flow after a packet of the backend: next if its
// client has sent only ACKs, and other states if the client has sent FIN or SYN.
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

// Changes reports whether a segment with a good checksum would change more of the flow than its
// last-seen time. If so, the caller verifies the checksum before it calls Observe.
func (h *Handle) Changes(r Ref, from Side, s Segment, now Time) bool {
	f := h.Flow(r)
	word, m := f.word(), f.load()
	return m.live() && f.changedBy(m, m.observe(from, s, word, now.ticks()), from, &s, word)
}

// changedBy reports whether the step from m to n, or the sequence number that is stored with it, is
// more than a refresh.
func (f *Flow) changedBy(m, n meta, from Side, s *Segment, word uint32) bool {
	isn, ok := f.answeredBy(m, n, from, s)
	return n.at(0) != m.at(0) || ok && isn != word
}

// answeredBy returns the backend's initial sequence number, if the segment that changes m to n
// carries it: a SYN-ACK, or an ACK or a FIN without data, whose sequence number is one higher. The
// last such segment counts: a backend may send two SYN-ACKs with different numbers (SYN cookies a
// minute apart, a stack that keeps no half-open connections), and only its next ACK shows which of
// them the client has acknowledged. An RST shows nothing: its sequence number is the number that a
// forged ACK acknowledged (RFC 9293 section 3.10.7.1). Only a segment that acknowledges the flow's
// SYN replaces a known number: another client may have had the source port before, and packets of
// that connection may arrive late.
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

// Observe updates the flow by one of its packets, and reports whether the flow stands from this
// packet on (State.Stands). It writes at most once a second, when the state changes, and for each
// of the first datagrams of a UDP flow (countedDatagrams).
func (h *Handle) Observe(r Ref, from Side, s Segment, now Time) (stands bool) {
	f := h.Flow(r)
	for t := now.ticks(); ; {
		// Load the word before meta: if another handle changes both in between, the swap of each
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

// Closing reports whether the connection is over on both sides. A client's SYN on such a flow opens
// a new connection, for which a backend is selected again. A reset connection is not closing: the
// RST may be forged, and so may the SYN.
func (h *Handle) Closing(r Ref) bool {
	switch h.Flow(r).State() {
	case None, LastAckClient, LastAckBackend, TimeWaitClient, TimeWaitBackend, Closed:
		return true
	}
	return false
}
