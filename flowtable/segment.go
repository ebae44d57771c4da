package flowtable

// Segment is what the state machine reads of a TCP segment, an SCTP packet or a datagram.
type Segment struct {
	Flags uint8 // of TCP, or those that correspond to an SCTP chunk (header.Packet.TCPFlags)
	// Data: a TCP segment with payload; an SCTP packet of an open association, such as DATA, SACK
	// or HEARTBEAT (RFC 9260 section 3.2).
	Data bool
	// Unverified: the checksum is wrong, or nobody has computed it. Such a segment changes nothing
	// but the time at which the flow was last seen.
	Unverified bool
	Later      bool   // of UDP: a later fragment of a datagram, which is counted by its first one
	Seq, Ack   uint32 // of TCP (RFC 9293 section 3.1), host byte order
}

// class returns the segment's class.
func (s *Segment) class() class { return classOf(s.Flags) }
