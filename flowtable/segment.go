package flowtable

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
