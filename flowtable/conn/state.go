package conn

import (
	"slices"
	"strings"
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

	_ uint = 16 - NumStates // Meta has four bits for it
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

// StateNames lists the names of all states of flows in lower case, each once, in the order of a
// flow's life.
func StateNames() (names []string) {
	for _, name := range stateNames[None+1:] {
		if name = strings.ToLower(name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// HalfOpen reports whether the client has not acknowledged yet. The cap of half-open flows does not
// count Unconfirmed flows: they may be open connections that are idle, as in a connection pool.
func (s State) HalfOpen() bool { return s == SynSeen || s == SynRecv }

// Assured reports whether both ends have sent packets, and the client has received the backend's: a
// TCP or SCTP flow whose handshake is complete, even if the connection is over, or a UDP flow whose
// client sent after a reply. Over UDP that is no proof: a forger may have guessed the time of the
// reply.
func (s State) Assured() bool {
	return s >= Established && s <= TimeWaitBackend || s == UDPAssured
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

// Ends are the ends of a connection that packets have shown, a bit each: the client's FIN, the
// backend's, and the ACK of the last FIN.
type Ends uint8

const (
	endClient Ends = 1 << iota
	endBackend
	endAcked

	endFINs  = endClient | endBackend
	EndsBits = 3
)

// Ends returns the ends that packets have shown.
func (s State) Ends() Ends {
	switch s {
	case FinClient:
		return endClient
	case FinBackend:
		return endBackend
	case LastAckClient, LastAckBackend:
		return endFINs
	case TimeWaitClient, TimeWaitBackend:
		return endFINs | endAcked
	}
	return 0
}

// FirstFIN returns the side that closed first, in a state with Ends.
func (s State) FirstFIN() Side {
	if s == FinBackend || s == LastAckBackend || s == TimeWaitBackend {
		return ReplySide
	}
	return ClientSide
}

// Merge returns s, and the ends of another gateway's state o of the connection that are not in
// known. The side that closed first in s stays the first one. Both states have a proven handshake.
func (s State) Merge(o State, known Ends) State {
	more := o.Ends() &^ s.Ends() &^ known
	if more == 0 {
		return s
	}
	order := o
	if s.Ends() != 0 {
		order = s
	}
	client, all := order.FirstFIN() == ClientSide, s.Ends()|more
	switch {
	case all&endFINs == 0:
		return s
	case all&endFINs == endClient:
		return FinClient
	case all&endFINs == endBackend:
		return FinBackend
	case all == endFINs && client:
		return LastAckClient
	case all == endFINs:
		return LastAckBackend
	case client:
		return TimeWaitClient
	}
	return TimeWaitBackend
}

// Open reports whether a backend has answered, and the connection is not over.
func (s State) Open() bool { return s >= SynRecv && s <= FinBackend }

// Connection reports whether a flow is a connection of TCP or SCTP that is not closed on both
// sides.
func (s State) Connection() bool { return s >= SynSeen && s <= LastAckBackend }

// UDP reports whether a flow is in a state of UDP.
func (s State) UDP() bool { return s >= UDPNew && s <= UDPAssured }

// Over reports whether the connection has ended on both sides.
func (s State) Over() bool { return s >= LastAckClient && s <= Closed }
