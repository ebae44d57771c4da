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
	SynRecv               // TCP: the backend answered, the client has not yet
	Unconfirmed           // TCP: the client acknowledged, the backend has not sent since
	Established           // TCP: handshake complete: the backend sent after the client acknowledged
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
	refresh move = 1 << 4 // refresh the flow, and forget an RST
	reset   move = 1 << 5 // put the flow on the reset timer
	ask     move = 1 << 6 // remember the SYN
	answer  move = 1 << 7 // begin anew, if a SYN is remembered
	finish  move = 1 << 8 // remember the client's FIN until the backend sends
	confirm move = 1 << 9 // the backend sends: the client's packets were genuine
)

// moves is the state machine: moves[state][side][class]. A packet without an entry leaves the flow
// as it is, without a refresh. In particular: SYN and SYN-ACK never refresh (a lone retransmitted
// SYN must not hold a half-open flow), and an RST outside the handshake changes no state: no
// sequence numbers are tracked, so it may be forged, and any later packet of the flow cancels it
// (RFC 7857 section 2.2).
//
// A SYN on a connection that is open may be forged as well, or the client may have
// lost the connection (RFC 9293 section 3.5.1). Only the backend knows, so the SYN is forwarded to
// it, and remembered; the state does not change. A backend that has the connection sends a
// challenge ACK (RFC 5961 section 4), which clears the remembered SYN. A backend that has not sends
// a SYN-ACK: the handshake begins anew, on the same flow. A forged SYN-ACK is forwarded to the
// client, whose ACK undoes it. A backend's RST is no answer: a sender that forged the SYN could
// forge it too.
//
// The client's packets alone prove nothing, as no sequence numbers are tracked: a sender
// that forges SYNs from foreign addresses can forge an ACK after each, or a FIN.
// Only the backend knows which ACK acknowledges its own SYN-ACK. It answers other ACKs with an RST
// (RFC 9293 section 3.10.7.4, SYN-RECEIVED) or not at all, and the right one with data or with an
// ACK of the client's data, if there is any. Until then the flow is Unconfirmed: it has the timeout
// of an open connection, but gives way under pressure. The backend's ACK after a SYN is about that
// SYN, and confirms nothing.
//
// An SCTP association (RFC 9260 sections 5.1 and 9.2) takes the same states:
//
//	INIT               SynSeen        SHUTDOWN           FinClient
//	INIT ACK           SynRecv        SHUTDOWN ACK       LastAckClient
//	COOKIE ECHO        Unconfirmed    SHUTDOWN COMPLETE  TimeWaitClient
//	COOKIE ACK         Established    ABORT              as an RST
//
// with four differences. The server answers a right COOKIE ECHO at once, so Unconfirmed is
// short, and does not answer a forged one. Heartbeats, 30 s apart and answered (section 8.3), are
// ACKs that keep an idle association. There is no half-closed association: after a SHUTDOWN the
// other end sends its remaining data and answers with SHUTDOWN ACK. After SHUTDOWN COMPLETE no
// TIME_WAIT is needed, because verification tags identify old packets, but the flow gets it. And an
// endpoint answers an INIT on an open association with INIT ACK, whether or not it is forged, and
// continues until a valid COOKIE ECHO (section 5.2.2): see answered.
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
	m[SynRecv][ClientSide][classACK] = move(Unconfirmed)
	m[SynRecv][ClientSide][classFIN] = move(Unconfirmed) | finish
	m[Unconfirmed][ClientSide][classACK] = move(Unconfirmed) | refresh
	m[Unconfirmed][ClientSide][classFIN] = move(Unconfirmed) | refresh | finish
	m[Unconfirmed][ClientSide][classRST] = move(Unconfirmed) | reset
	m[Unconfirmed][ReplySide][classACK] = move(Established) | refresh | confirm
	m[Unconfirmed][ReplySide][classFIN] = move(FinBackend) | confirm
	m[Unconfirmed][ReplySide][classRST] = move(Closed)
	for _, s := range []State{SynSeen, SynRecv} {
		m[s][ReplySide][classRST] = move(Closed)
		m[s][ClientSide][classRST] = move(s) | reset
	}

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
	return m
}

// datagram is the state machine of everything but TCP and SCTP. One packet and its reply prove
// nothing: the client's address may be forged. A client that sends again has received the reply, or
// a forger spends more than one packet on each flow.
var datagram = [NumStates][2]move{
	UDPNew:     {move(UDPNew) | refresh, move(UDPReplied)},
	UDPReplied: {move(UDPAssured), move(UDPReplied) | refresh},
	UDPAssured: {move(UDPAssured) | refresh, move(UDPAssured) | refresh},
	ICMPEcho:   {move(ICMPEcho) | refresh, move(ICMPEcho) | refresh},
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

// observe returns m as changed by a packet at time now; m itself if nothing need be written.
func (m meta) observe(from Side, tcpFlags uint8, now ticks) meta {
	var mv move
	if header.Stateful(m.proto()) {
		mv = moves[m.state()][from&1][classOf(tcpFlags)]
	} else {
		mv = datagram[m.state()][from&1]
	}
	if m.seen()-now < 1<<31 {
		now = m.seen() // another worker's batch is later than ours: never step back
	}
	next := State(mv & 15)
	if mv&confirm != 0 {
		next = m.confirmed(next)
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
		if m&metaAgain == 0 {
			return m
		}
		return m.answered(next).at(now) &^ metaNotes
	case next != m.state():
		return m.withState(next).at(now)&^metaNotes | note
	case mv&reset != 0 && !m.reset():
		return m.at(now) | metaReset // the timer starts with the first RST, later ones do not move it
	case note&^m != 0:
		return m.at(now)&^metaNotes | note
	case mv&refresh != 0 && (m&(metaReset|metaAgain|metaRepeat) != 0 || now.since(m.seen()) >= refreshTicks):
		return m.refreshed(now) &^ (metaReset | metaAgain | metaRepeat)
	}
	return m
}

// usedSeconds returns in how many seconds an assured UDP flow had packets, up to 256.
func (m meta) usedSeconds() int32 { return 1 + int32(m&metaUsed>>metaUsedShift) }

// refreshed returns a flow that stays in its state and has no notes, refreshed. It is for once a
// second; of assured UDP it counts that second.
func (m meta) refreshed(now ticks) meta {
	if m.state() == UDPAssured && m&metaUsed != metaUsed {
		m += 1 << metaUsedShift
	}
	return m.at(now)
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

// Observe tells the flow about one of its packets, and reports whether the flow stands since
// (State.Stands). It writes at most once a second, or when the state changes.
func (h *Handle) Observe(r Ref, from Side, tcpFlags uint8, now Time) (stands bool) {
	f := h.Flow(r)
	for t := now.ticks(); ; {
		m := f.load()
		if !m.live() {
			return false
		}
		n := m.observe(from, tcpFlags, t)
		if n == m {
			return false
		}
		if f.swap(m, n) {
			h.moved(r, m, n)
			return n.state().Stands() && !m.state().Stands()
		}
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
