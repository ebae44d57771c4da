package conn

import "sluice.dev/sluice/nat/header"

// Side says which of a flow's two tuples a packet carries.
type Side uint8

const (
	ClientSide Side = iota // client to frontend
	ReplySide              // backend to our source
)

// Segment has the fields of a TCP segment, an SCTP packet or a datagram that the state machine
// reads.
type Segment struct {
	Flags uint8 // of TCP, or the flags that correspond to an SCTP chunk (header.Packet.TCPFlags)
	// Data: a TCP segment with payload; an SCTP packet of an open association, such as DATA, SACK
	// or HEARTBEAT (RFC 9260 section 3.2).
	Data bool
	// Unverified: the checksum is wrong or was not verified. Such a segment changes only the flow's
	// last-seen time.
	Unverified bool
	Later      bool   // of UDP: not the first fragment of a datagram; only the first is counted
	Seq, Ack   uint32 // of TCP (RFC 9293 section 3.1), host byte order
}

// class returns the segment's class.
func (s *Segment) class() class { return classOf(s.Flags) }

// SYNACK reports whether the segment is a SYN-ACK.
func (s *Segment) SYNACK() bool { return s.class() == classSYNACK }

// Acknowledges reports whether the segment acknowledges a SYN with this sequence number, and
// nothing behind it.
func (s *Segment) Acknowledges(syn uint32) bool { return s.Flags&header.TCPACK != 0 && s.Ack == syn+1 }

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

// classOf reduces flags to a class: RST over SYN over FIN over ACK.
func classOf(flags uint8) class {
	switch {
	case flags&header.TCPRST != 0:
		return classRST
	case flags&(header.TCPSYN|header.TCPACK) == header.TCPSYN|header.TCPACK:
		return classSYNACK
	case flags&header.TCPSYN != 0:
		return classSYN
	case flags&header.TCPFIN != 0:
		return classFIN
	case flags&header.TCPACK != 0:
		return classACK
	}
	return classNone
}
