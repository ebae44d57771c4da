package conn

import "sluice.dev/sluice/nat/header"

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
// good checksum (ChangedTo). SYN and SYN-ACK never refresh: retransmitted SYNs alone must not keep
// a half-open flow.
//
// # Proof of a handshake
//
// A sender that forges SYNs from addresses of others can also forge all later packets of the
// client. But it does not receive the backend's SYN-ACK, and so does not know its sequence number.
// So in SynRecv a TCP flow keeps that number (created of a flow record). It becomes Established by
// a client's segment that acknowledges exactly the SYN-ACK, or by data of the backend, which has
// then established the connection (also by TCP Fast Open, RFC 7413). No other segment moves it out
// of SynRecv: neither a backend's bare ACK, which may be the challenge to a second SYN (RFC 9293
// section 3.10.7.4), nor the backend's RST, which a forged ACK provokes too (ibid., SYN-RECEIVED).
// If the connection was set up before this flow, the backend's first packet is a bare ACK: then the
// client must acknowledge the sequence number of that ACK.
//
// A client may reset its handshake and start again; so may an attacker who forges its segments.
// Only the first restart renews the age of the flow. Otherwise three packets each second would keep
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
//     flow may be shed while it is idle (BothFins), but it keeps the timeout of its state.
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

// Initial is the state of a new flow.
func Initial(proto uint8) State {
	switch proto {
	case header.ProtoTCP, header.ProtoSCTP:
		return SynSeen
	case header.ProtoICMP, header.ProtoICMPv6:
		return ICMPEcho
	}
	return UDPNew
}
