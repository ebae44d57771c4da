package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// ErrorKind is the condition that an ICMP error of the gateway reports.
type ErrorKind uint8

const (
	// TimeExceeded: the TTL or hop limit reached zero in transit.
	TimeExceeded ErrorKind = iota
	// FragmentationNeeded: the packet is too big for the next link, whose MTU is mtu bytes. ICMPv6
	// calls it packet too big.
	FragmentationNeeded
	// PortUnreachable: no service has this port.
	PortUnreachable
	// HostUnreachable: there is no route to the destination.
	HostUnreachable
	// AdminProhibited: the configuration forbids the packet.
	AdminProhibited
	// ProtocolUnreachable: no service has this protocol. ICMPv6 calls it a parameter problem, and
	// points to the next header field that names the protocol.
	ProtocolUnreachable
)

// icmpCode is a type and a code.
type icmpCode struct{ icmpType, code uint8 }

// The type and code of each ErrorKind: RFC 792, RFC 1812 section 5.2.7.1 (code 13), RFC 4443
// section 3.
var (
	errorCodes4 = [...]icmpCode{
		TimeExceeded:        {header.ICMPTimeExceeded, 0},
		FragmentationNeeded: {header.ICMPUnreachable, 4},
		PortUnreachable:     {header.ICMPUnreachable, 3},
		HostUnreachable:     {header.ICMPUnreachable, 1},
		AdminProhibited:     {header.ICMPUnreachable, 13},
		ProtocolUnreachable: {header.ICMPUnreachable, 2},
	}
	errorCodes6 = [...]icmpCode{
		TimeExceeded:        {header.ICMPv6TimeExceeded, 0},
		FragmentationNeeded: {header.ICMPv6PacketTooBig, 0},
		PortUnreachable:     {header.ICMPv6Unreachable, 4},
		HostUnreachable:     {header.ICMPv6Unreachable, 0},
		AdminProhibited:     {header.ICMPv6Unreachable, 1},
		ProtocolUnreachable: {header.ICMPv6ParameterProblem, 1},
	}
)

const (
	maxError4Bytes = 576  // RFC 1812 section 4.3.2.3
	maxError6Bytes = 1280 // RFC 4443 section 2.4 (c): the minimum IPv6 MTU
	errorTTL       = 64   // RFC 1700's recommended default
	errorTOS       = 0xc0 // precedence 6, RFC 1812 section 4.3.2.5
	ipv4DF         = 0x4000
)

// BuildError writes an ICMP error about orig into dst: an untagged Ethernet header whose addresses
// are zero, IP from src to the sender of orig, the ICMP message, and as much of orig as the RFCs
// allow. orig must be the packet as its sender sent it, before translation. Only
// FragmentationNeeded uses mtu.
//
// n is the length of the frame in bytes. ok is false if no error may be sent (see mayReport), or if
// dst has no room for the minimum quote that a receiver needs.
func BuildError(dst, orig []byte, p *header.Packet, kind ErrorKind, src header.Addr, mtu uint16) (n int, ok bool) {
	if !mayReport(p) {
		return 0, false
	}
	ipBytes, limit, etherType := header.IPv4Bytes, maxError4Bytes, header.EtherTypeIPv4
	if p.Tuple.V6 {
		ipBytes, limit, etherType = header.IPv6Bytes, maxError6Bytes, header.EtherTypeIPv6
	}
	limit = min(limit, len(dst)-header.EthernetBytes)
	quote := orig[p.L3:min(int(p.End), len(orig))]
	quoteBytes := min(len(quote), limit-ipBytes-header.ICMPBytes)
	if quoteBytes < min(len(quote), int(p.L4-p.L3)+header.ICMPBytes) {
		return 0, false
	}
	totalBytes := ipBytes + header.ICMPBytes + quoteBytes
	n = header.EthernetBytes + totalBytes
	b := dst[:n]
	clear(b[:header.EthernetBytes+ipBytes+header.ICMPBytes])
	binary.BigEndian.PutUint16(b[header.EthernetBytes-2:], uint16(etherType))
	ip, message := b[header.EthernetBytes:], b[header.EthernetBytes+ipBytes:]
	copy(message[header.ICMPBytes:], quote)
	if p.Tuple.V6 {
		if kind == ProtocolUnreachable {
			mtu = p.NextHeaderField(orig) - p.L3
		}
		writeError6(ip, message, kind, &src, &p.Tuple.Src, mtu)
	} else {
		writeError4(ip, message, kind, &src, &p.Tuple.Src, mtu)
	}
	return n, true
}

// mayReport reports whether an error about a packet may be sent: not about an error or a redirect,
// not about a later fragment, not about a multicast packet, and not to an address that is not
// unicast (RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e)). It checks the addresses again
// although header.Parse rejects such packets: a caller that reports a rejected packet must not make
// the gateway a reflector.
func mayReport(p *header.Packet) bool {
	if p.L3 == 0 || p.Multicast || p.Fragment == header.LaterFragment {
		return false
	}
	if !header.Unicast(&p.Tuple.Src) || !header.Unicast(&p.Tuple.Dst) {
		return false
	}
	switch p.Tuple.Proto {
	case header.ProtoICMP:
		return !header.IsICMPError(false, p.ICMPType)
	case header.ProtoICMPv6: // types below 128 are errors, including unassigned ones
		return p.ICMPType >= header.ICMPv6EchoRequest && p.ICMPType != header.ICMPv6Redirect
	}
	return true
}

// writeError4 fills zeroed headers. The datagram is atomic, so it needs no identification (RFC 6864
// section 4.1).
func writeError4(ip, message []byte, kind ErrorKind, src, dst *header.Addr, mtu uint16) {
	h := (*[header.IPv4Bytes]byte)(ip)
	h[0], h[1] = 0x45, errorTOS
	binary.BigEndian.PutUint16(h[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(h[6:], ipv4DF)
	h[ipv4TTLOffset], h[9] = errorTTL, header.ProtoICMP
	*(*[4]byte)(h[ipv4SrcOffset:]) = src.As4()
	*(*[4]byte)(h[ipv4DstOffset:]) = dst.As4()
	binary.BigEndian.PutUint16(h[ipv4ChecksumOffset:], ^checksum.Sum(h[:]))

	code := errorCodes4[kind]
	message[0], message[1] = code.icmpType, code.code
	if kind == FragmentationNeeded {
		binary.BigEndian.PutUint16(message[6:], mtu) // RFC 1191 section 4
	}
	binary.BigEndian.PutUint16(message[icmpChecksumOffset:], ^checksum.Sum(message))
}

// writeError6 fills zeroed headers. pointer is the path MTU of FragmentationNeeded, or the offset
// to which ProtocolUnreachable points.
func writeError6(ip, message []byte, kind ErrorKind, src, dst *header.Addr, pointer uint16) {
	h := (*[header.IPv6Bytes]byte)(ip)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(len(message)))
	h[6], h[ipv6HopOffset] = header.ProtoICMPv6, errorTTL
	*(*[16]byte)(h[ipv6SrcOffset:]) = *src
	*(*[16]byte)(h[ipv6DstOffset:]) = *dst

	code := errorCodes6[kind]
	message[0], message[1] = code.icmpType, code.code
	if kind == FragmentationNeeded || kind == ProtocolUnreachable {
		binary.BigEndian.PutUint16(message[6:], pointer) // low half of 32 bits
	}
	sum := checksum.Add(checksum.Sum(message), checksum.Add(uint16(len(message)), header.ProtoICMPv6))
	sum = checksum.Add(sum, checksum.Add(src.Sum(), dst.Sum()))
	binary.BigEndian.PutUint16(message[icmpChecksumOffset:], ^sum)
}
