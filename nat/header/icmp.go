package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/reason"
)

// ICMP types (RFC 792).
const (
	ICMPEchoReply        = 0
	ICMPUnreachable      = 3
	ICMPSourceQuench     = 4
	ICMPRedirect         = 5
	ICMPEchoRequest      = 8
	ICMPTimeExceeded     = 11
	ICMPParameterProblem = 12
)

// ICMPv6 types (RFC 4443). Types below 128 are errors.
const (
	ICMPv6Unreachable      = 1
	ICMPv6PacketTooBig     = 2
	ICMPv6TimeExceeded     = 3
	ICMPv6ParameterProblem = 4
	ICMPv6EchoRequest      = 128
	ICMPv6EchoReply        = 129
	ICMPv6Redirect         = 137 // RFC 4861 section 4.5
)

// ICMPFragmentationNeeded is the code of ICMPUnreachable about a packet that is too big for a link
// and has DF set.
const ICMPFragmentationNeeded = 4

// minInnerBytes is the minimum part of the transport header that an error carries (RFC 792): enough
// for the ports of TCP, UDP and SCTP, and for the identifier of a query.
const minInnerBytes = 8

// minExtendedBytes is the shortest quote that extensions may follow (RFC 4884
// section 3); older senders left the length field zero.
const minExtendedBytes = 128

// IsICMPError reports whether a type of ICMP (v6 false) or ICMPv6 is an error about another packet:
// 3, 4, 5, 11, 12, or 1 to 4.
func IsICMPError(v6 bool, icmpType uint8) bool {
	if v6 {
		return icmpType >= ICMPv6Unreachable && icmpType <= ICMPv6ParameterProblem
	}
	switch icmpType {
	case ICMPUnreachable, ICMPSourceQuench, ICMPRedirect, ICMPTimeExceeded, ICMPParameterProblem:
		return true
	}
	return false
}

// IsRedirectOrQuench reports whether an error is a redirect or a source quench, which no router
// forwards (RFC 1812 sections 4.3.3.2 and 5.2.7.2, RFC 6633) and no host sends to another network.
// Over IPv6 a redirect is no error, and there is no source quench.
func IsRedirectOrQuench(v6 bool, icmpType uint8) bool {
	return !v6 && (icmpType == ICMPRedirect || icmpType == ICMPSourceQuench)
}

func isEcho(v6 bool, icmpType uint8) bool {
	if v6 {
		return icmpType == ICMPv6EchoRequest || icmpType == ICMPv6EchoReply
	}
	return icmpType == ICMPEchoRequest || icmpType == ICMPEchoReply
}

// reportsError reports whether a packet is a whole ICMP error, according to its IP header, which
// must name ICMP directly, and the type in the first byte after it.
func (p *Packet) reportsError(frame []byte) bool {
	proto := uint8(ProtoICMP)
	if p.Tuple.V6 {
		proto = ProtoICMPv6
	}
	b := p.Transport(frame)
	return p.Tuple.Proto == proto && p.Fragment == NotFragment && len(b) > 0 && IsICMPError(p.Tuple.V6, b[0])
}

// ChecksumICMP verifies the checksum of the ICMP or ICMPv6 message in the frame. It returns false
// for a fragment, because the checksum covers the whole datagram.
func ChecksumICMP(frame []byte, p *Packet) bool { return ChecksumLongICMP(frame, p, 0) }

// ChecksumLongICMP is ChecksumICMP if frame is only the first part of the packet's frame. rest is
// the sum of the message's remaining words. Words are counted from the start of the message, so the
// first byte of a word may be in frame and its second byte in the rest.
func ChecksumLongICMP(frame []byte, p *Packet, rest uint16) bool {
	if p.Fragment != NotFragment {
		return false
	}
	sum := checksum.Add(checksum.Sum(p.Transport(frame)), rest)
	if p.Tuple.V6 { // pseudo-header, RFC 8200 section 8.1
		sum = checksum.Add(sum, p.Tuple.sumAddrs())
		sum = checksum.Add(sum, checksum.Add(p.End-p.L4, ProtoICMPv6))
	}
	return sum == 0xffff
}

// PathMTU returns the path MTU that an ICMP error announces (RFC 1191 section 4, RFC 4443 section
// 3.2), in bytes. ok is false for messages of other types and codes.
func PathMTU(frame []byte, p *Packet) (mtu uint32, ok bool) {
	rest := frame[p.L4+4:]
	switch {
	case p.Tuple.V6 && p.ICMPType == ICMPv6PacketTooBig:
		return binary.BigEndian.Uint32(rest), true
	case !p.Tuple.V6 && p.ICMPType == ICMPUnreachable && p.ICMPCode == ICMPFragmentationNeeded:
		return uint32(binary.BigEndian.Uint16(rest[2:])), true
	}
	return 0, false
}

// ParseInner reads the packet embedded in an ICMP or ICMPv6 error: the header and at least 8 bytes
// of transport (RFC 792; RFC 4443 section 2.4); an error need not carry more. inner.Tuple is the
// direction of the embedded packet, as the sender of the error claims it. Offsets in inner are from
// the start of frame. inner.End is the end of the quoted bytes, not the end that the embedded
// packet's length field claims.
//
// Lengths and checksums inside are not compared with the quoted bytes. RFC 5508 REQ-3 a requires
// verifying the embedded IPv4 header checksum. But routers quote a packet after they have changed
// its TTL or DSCP, and hosts leave the checksum to their NIC, so Linux verifies none
// (nf_nat_manip_pkt, net/netfilter/nf_nat_proto.c). The message's own checksum must be right
// (ChecksumICMP), and its quote must be about a flow.
//
// An error about an error is invalid (RFC 1122 section 3.2.2). An error about a later fragment is
// valid, but has no ports.
func ParseInner(frame []byte, outer *Packet, inner *Packet) reason.Drop {
	*inner = Packet{}
	if outer.Fragment != NotFragment {
		return reason.ICMPHeader
	}
	l3 := int(outer.L4) + ICMPBytes
	end := quotedEnd(frame, outer)
	var sensible bool // no function value here: inner would escape to the heap
	if outer.Tuple.V6 {
		sensible = parseInnerIPv6(frame[:end], inner, l3)
	} else {
		sensible = parseInnerIPv4(frame[:end], inner, l3)
	}
	if !sensible {
		return reason.ICMPHeader
	}
	if inner.Fragment == LaterFragment {
		return reason.None
	}
	return parseInnerTransport(frame[inner.L4:end], inner)
}

// quotedEnd returns the end of the quoted bytes: the end of the message, or the start of the
// extensions that a length field in the ICMP header announces (RFC 4884 section 3).
func quotedEnd(frame []byte, outer *Packet) int {
	end := outer.reach(frame)
	var quotedBytes int
	switch {
	case outer.Tuple.V6 && (outer.ICMPType == ICMPv6Unreachable || outer.ICMPType == ICMPv6TimeExceeded):
		quotedBytes = int(frame[outer.L4+4]) * 8
	case !outer.Tuple.V6 && (outer.ICMPType == ICMPUnreachable ||
		outer.ICMPType == ICMPTimeExceeded || outer.ICMPType == ICMPParameterProblem):
		quotedBytes = int(frame[outer.L4+5]) * 4
	}
	if quotedBytes < minExtendedBytes {
		return end
	}
	return min(end, int(outer.L4)+ICMPBytes+quotedBytes)
}

func parseInnerIPv4(quoted []byte, inner *Packet, l3 int) bool {
	if len(quoted) < l3+IPv4Bytes {
		return false
	}
	h := (*[IPv4Bytes]byte)(quoted[l3:])
	l4 := l3 + int(h[0]&15)*4
	if h[0]>>4 != 4 || l4 < l3+IPv4Bytes || l4 > len(quoted) {
		return false
	}
	inner.setIPv4(h, l3, l4, len(quoted))
	return true
}

func parseInnerIPv6(quoted []byte, inner *Packet, l3 int) bool {
	if len(quoted) < l3+IPv6Bytes {
		return false
	}
	h := (*[IPv6Bytes]byte)(quoted[l3:])
	if h[0]>>4 != 6 {
		return false
	}
	inner.setIPv6(h, l3, len(quoted))
	return inner.walkExtensions(quoted, h[6]) == reason.None
}

func parseInnerTransport(b []byte, inner *Packet) reason.Drop {
	if !TransportKnown(inner.Tuple.Proto, inner.Tuple.V6) {
		return reason.Protocol
	}
	if len(b) < minInnerBytes {
		return reason.ICMPHeader
	}
	h := (*[minInnerBytes]byte)(b)
	switch inner.Tuple.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		inner.Tuple.SrcPort = binary.BigEndian.Uint16(h[0:2])
		inner.Tuple.DstPort = binary.BigEndian.Uint16(h[2:4])
		return reason.None
	}
	inner.ICMPType, inner.ICMPCode = h[0], h[1]
	if IsICMPError(inner.Tuple.V6, h[0]) {
		return reason.ICMPHeader
	}
	if !isEcho(inner.Tuple.V6, h[0]) {
		return reason.ICMPType
	}
	inner.Tuple.SrcPort = binary.BigEndian.Uint16(h[4:6])
	inner.Tuple.DstPort = inner.Tuple.SrcPort
	return reason.None
}
