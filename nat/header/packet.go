package header

import "sluice.dev/sluice/fastpath/stats"

// Fragment says which part of a datagram a packet is.
type Fragment uint8

const (
	NotFragment   Fragment = iota // whole (an IPv6 atomic fragment, RFC 6946, counts as whole)
	FirstFragment                 // offset 0, more to come: carries the ports
	LaterFragment                 // carries no ports
)

// Packet is what Parse found. Offsets are in bytes from the start of the frame.
// It is pointer-free; a batch holds an array of them.
type Packet struct {
	// Tuple is the packet's own direction. For a LaterFragment both ports are
	// zero until the fragment table supplies them. For an ICMP query (echo
	// request or reply) both ports are the identifier. For an ICMP error, and
	// all other ICMP, both are zero: ParseInner reads the embedded tuple.
	Tuple Tuple

	L3  uint16 // IP header
	L4  uint16 // transport header (for a LaterFragment: first payload byte)
	End uint16 // end of the IP packet; Ethernet padding may follow

	FragmentID     uint32 // IPv4 identification or IPv6 fragment identification
	FragmentOffset uint16 // bytes
	FragmentHeader uint16 // IPv6: offset of the fragment header, 0 if none
	Fragment       Fragment

	TCPFlags uint8 // byte 13 of the TCP header
	ICMPType uint8
	ICMPCode uint8
	TTL      uint8 // TTL or hop limit as received
	DF       bool  // IPv4 don't-fragment bit; always true for IPv6

	VLANs uint8     // tags found, 0 to 2
	VLAN  [2]uint16 // TCI, outer first

	Multicast bool // the frame's destination MAC has the group bit
}

// Parse reads and judges one Ethernet frame. It returns stats.None and fills p,
// or the reason to drop the packet; p then holds only what was read before the
// fault (Tuple addresses are valid if L3 is not zero).
//
// What is checked: lengths against the frame; IPv4 header checksum, version,
// IHL, total length, source route options; the IPv6 extension chain (bounded);
// fragment geometry; TCP data offset and flag combinations; UDP length and, over
// IPv6, its zero checksum; ports not zero; martian and land addresses. Not
// checked: TCP, UDP and SCTP checksums (wrong in, wrong out) and ICMP checksums
// (see ChecksumICMP), TTL.
func Parse(frame []byte, p *Packet) stats.DropReason { panic("written by package header") }

// ParseInner reads the packet embedded in an ICMP or ICMPv6 error: the header
// and at least 8 bytes of transport (RFC 792; RFC 4443 section 2.4), which is all
// that an error may carry. inner.Tuple is the embedded packet's direction: the
// one our peer claims somebody sent. Offsets in inner are from the start of frame.
// inner.End is where the frame's bytes end, not where the embedded packet claims to.
func ParseInner(frame []byte, outer *Packet, inner *Packet) stats.DropReason {
	panic("written by package header")
}

// IsICMPError says whether a type of ICMP (v6 false) or ICMPv6 reports about
// another packet: 3, 4, 5, 11, 12, or 1 to 4.
func IsICMPError(v6 bool, icmpType uint8) bool { panic("written by package header") }

// ChecksumICMP verifies the checksum of the ICMP or ICMPv6 message in the frame.
func ChecksumICMP(frame []byte, p *Packet) bool { panic("written by package header") }
