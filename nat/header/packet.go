package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/reason"
)

// Fragment is the part of a datagram that a packet is.
type Fragment uint8

const (
	NotFragment   Fragment = iota // whole (an IPv6 atomic fragment, RFC 6946, counts as whole)
	FirstFragment                 // offset 0, more fragments follow: carries the ports
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

	TCPFlags uint8 // byte 13 of the TCP header; for SCTP, the corresponding flags (sctp.go)
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
	maxPacketBytes  = 65535 // RFC 791, RFC 8200: the maximum of a 16-bit length
	fragmentUnit    = 8     // RFC 791, RFC 8200: unit of the fragment offset, in bytes
	etherTypeOffset = 12
)

// Parse reads and checks one Ethernet frame. It returns reason.None and fills p, or it returns the
// reason to drop the packet; then p has only the fields read before the fault (Tuple addresses are
// valid if L3 is not zero).
//
// Parse checks lengths against the frame; IPv4 header checksum, version, IHL, total length and
// options; the IPv6 extension chain (bounded); fragment geometry; TCP data offset and flag
// combinations; UDP length; the first SCTP chunk, and that an SCTP packet is no fragment; that
// ports are not zero; and that addresses are not martian, except for a link-local source of an ICMP
// error, nor equal (land). It does not check TCP, UDP and SCTP checksums (a wrong one stays wrong),
// ICMP checksums (see ChecksumICMP), and TTL.
func Parse(frame []byte, p *Packet) reason.Drop { return ParseLong(frame, len(frame), p) }

// ParseLong is Parse for a frame of frameBytes bytes, of which frame is only the first part; the
// rest is in further buffers. All headers must be in this part: for headers that extend beyond it,
// ParseLong returns the reasons that Parse returns for truncated headers.
func ParseLong(frame []byte, frameBytes int, p *Packet) reason.Drop {
	*p = Packet{}
	if len(frame) < EthernetBytes {
		return reason.FrameTruncated
	}
	if frameBytes > maxPacketBytes {
		return reason.FrameOversize // offsets are 16 bits
	}
	p.Multicast = frame[0]&1 != 0
	l3 := EthernetBytes
	etherType := binary.BigEndian.Uint16(frame[etherTypeOffset:])
	for etherType == EtherTypeVLAN || etherType == EtherTypeQinQ {
		if p.VLANs == maxVLANs {
			return reason.EtherType
		}
		if len(frame) < l3+VLANBytes {
			return reason.FrameTruncated
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
	return reason.EtherType
}

// reach returns the end of the packet's bytes in part, the first part of its frame. After Parse
// that is the end of the packet.
func (p *Packet) reach(part []byte) int { return min(int(p.End), len(part)) }

// Transport returns the bytes of a packet after its IP and extension headers, as far as they are in
// part, the first part of its frame, which may be the whole frame.
func (p *Packet) Transport(part []byte) []byte { return part[p.L4:p.reach(part)] }

// FragmentBytes returns the number of bytes that a fragment contributes to its datagram, counted
// from the same place as FragmentOffset.
func (p *Packet) FragmentBytes() uint16 {
	if p.FragmentHeader != 0 {
		return p.End - p.FragmentHeader - fragmentHeaderBytes
	}
	return p.End - p.L4
}
