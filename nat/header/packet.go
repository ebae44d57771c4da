package header

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/stats"
)

// Fragment is which part of a datagram a packet is.
type Fragment uint8

const (
	NotFragment   Fragment = iota // whole (an IPv6 atomic fragment, RFC 6946, counts as whole)
	FirstFragment                 // offset 0, more to come: carries the ports
	LaterFragment                 // carries no ports
)

// Packet is the result of Parse. Offsets are in bytes from the start of the frame.
// It is pointer-free and one cache line; a batch holds an array of them.
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

	TCPFlags uint8 // byte 13 of the TCP header; of SCTP, what means the same (sctp.go)
	ICMPType uint8
	ICMPCode uint8
	TTL      uint8 // TTL or hop limit as received
	DF       bool  // IPv4 don't-fragment bit; always true for IPv6

	Multicast bool // the frame's destination MAC has the group bit

	VLANs uint8     // tags found, 0 to 2
	VLAN  [2]uint16 // TCI, outer first
}

// EtherTypes that Parse knows.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeIPv6 = 0x86dd
	EtherTypeVLAN = 0x8100 // IEEE 802.1Q
	EtherTypeQinQ = 0x88a8 // IEEE 802.1ad
)

// Sizes of headers without options, in bytes.
const (
	EthernetBytes   = 14
	IPv4Bytes       = 20
	IPv6Bytes       = 40
	TCPBytes        = 20
	UDPBytes        = 8
	ICMPBytes       = 8
	VLANBytes       = 4
	maxVLANs        = 2
	maxPacketBytes  = 65535 // RFC 791, RFC 8200: what a 16-bit length can hold
	fragmentUnit    = 8     // RFC 791, RFC 8200: unit of the fragment offset, in bytes
	etherTypeOffset = 12
)

// Parse reads and judges one Ethernet frame. It returns stats.None and fills p,
// or the reason to drop the packet; p then holds only what was read before the
// fault (Tuple addresses are valid if L3 is not zero).
//
// What is checked: lengths against the frame; IPv4 header checksum, version,
// IHL, total length, source route options; the IPv6 extension chain (bounded);
// fragment geometry; TCP data offset and flag combinations; UDP length; of SCTP
// the first chunk, and that it is no fragment; ports not zero; martian addresses, but
// for a link-local source of an ICMP error, and land addresses. Not checked: TCP, UDP
// and SCTP checksums (wrong in, wrong out) and ICMP checksums (see ChecksumICMP), TTL.
func Parse(frame []byte, p *Packet) stats.DropReason { return ParseLong(frame, len(frame), p) }

// ParseLong is Parse for a frame of so many bytes of which only the first part is here, the others
// being in further buffers. All headers must be in this part: what Parse says of headers that end
// too early is said of those that leave it.
func ParseLong(frame []byte, frameBytes int, p *Packet) stats.DropReason {
	*p = Packet{}
	if len(frame) < EthernetBytes {
		return stats.FrameTruncated
	}
	if frameBytes > maxPacketBytes {
		return stats.FrameOversize // offsets are 16 bits
	}
	p.Multicast = frame[0]&1 != 0
	l3 := EthernetBytes
	etherType := binary.BigEndian.Uint16(frame[etherTypeOffset:])
	for etherType == EtherTypeVLAN || etherType == EtherTypeQinQ {
		if p.VLANs == maxVLANs {
			return stats.EtherType
		}
		if len(frame) < l3+VLANBytes {
			return stats.FrameTruncated
		}
		tag := (*[VLANBytes]byte)(frame[l3:])
		p.VLAN[p.VLANs] = binary.BigEndian.Uint16(tag[0:2])
		etherType = binary.BigEndian.Uint16(tag[2:4])
		p.VLANs++
		l3 += VLANBytes
	}
	switch etherType {
	case EtherTypeIPv4:
		return parseIPv4(frame, frameBytes, p, l3)
	case EtherTypeIPv6:
		return parseIPv6(frame, frameBytes, p, l3)
	}
	return stats.EtherType
}

// reach is what of a packet is in the part of its frame that is here: all of it, but for ParseLong.
func (p *Packet) reach(part []byte) int { return min(int(p.End), len(part)) }

// Transport returns what of a packet behind its IP header, and extension headers, is in a part of
// its frame that begins with the frame: all of it where the part is the whole frame.
func (p *Packet) Transport(part []byte) []byte { return part[p.L4:p.reach(part)] }

// FragmentBytes is the number of bytes that a fragment contributes to its
// datagram, counted from the same place as FragmentOffset.
func (p *Packet) FragmentBytes() uint16 {
	if p.FragmentHeader != 0 {
		return p.End - p.FragmentHeader - fragmentHeaderBytes
	}
	return p.End - p.L4
}
