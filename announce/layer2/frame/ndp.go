package frame

import (
	"encoding/binary"
	"net/netip"
)

// Neighbour solicitations and advertisements (RFC 4861, sections 4.3 and 4.4), offsets in ICMPv6:
//
//	0 type   1 code 0   2 checksum   4 flags   8 target   24 options: type, length / 8, value
const (
	ipv6Bytes     = 40
	ndpBytes      = 24
	icmpv6        = 58
	hopLimit      = 255 // no router has forwarded it (RFC 4861, section 7.1)
	solicitation  = 135
	advertisement = 136

	flagSolicited = 0x40000000
	flagOverride  = 0x20000000

	optionSource = 1 // the source's link-layer address
	optionTarget = 2 // the target's
)

// allNodes is the group of all nodes on a link (RFC 4291, section 2.7.1).
var allNodes = netip.MustParseAddr("ff02::1")

// ReadNDP parses a frame. ok is false if it is not a valid neighbour solicitation or advertisement.
func ReadNDP(b []byte) (p Packet, ok bool) {
	ip, from, ok := Payload(b, IPv6)
	if !ok || len(ip) < ipv6Bytes+ndpBytes || ip[0]>>4 != 6 || ip[6] != icmpv6 || ip[7] != hopLimit {
		return p, false
	}
	size := int(binary.BigEndian.Uint16(ip[4:]))
	if size < ndpBytes || size > len(ip)-ipv6Bytes {
		return p, false
	}
	source, m := netip.AddrFrom16([16]byte(ip[8:24])), ip[ipv6Bytes:ipv6Bytes+size]
	target := netip.AddrFrom16([16]byte(m[8:24]))
	option := map[byte]byte{solicitation: optionSource, advertisement: optionTarget}[m[0]]
	if option == 0 || m[1] != 0 || target.IsMulticast() || checksum(ip[8:40], m) != 0 {
		return p, false
	}
	p.From, p.FromMAC = source, from
	for rest := m[ndpBytes:]; len(rest) > 0; {
		if len(rest) < 8 || rest[1] == 0 || len(rest) < int(rest[1])*8 {
			return Packet{}, false
		}
		if rest[0] == option && rest[1] == 1 {
			p.FromMAC = MAC(rest[2:8])
		}
		rest = rest[int(rest[1])*8:]
	}
	if m[0] == solicitation {
		p.Asks = target
	} else {
		p.Claims = target
	}
	return p, true
}

// checksum is the ICMPv6 checksum (RFC 4443, section 2.3), which includes both IPv6 addresses. It
// is 0 over a message with a correct checksum.
func checksum(addresses, message []byte) uint16 {
	sum := uint32(len(message)) + icmpv6
	for _, part := range [...][]byte{addresses, message} {
		for ; len(part) >= 2; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint32(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func ndp(to, from MAC, source, destination netip.Addr, kind byte, flags uint32, target netip.Addr,
	option byte) []byte {
	const size = ndpBytes + 8
	b := ethernet(ipv6Bytes+size, to, from, IPv6)
	b = append(b, 0x60, 0, 0, 0, 0, size, icmpv6, hopLimit)
	b = append(append(b, source.AsSlice()...), destination.AsSlice()...)
	at := len(b)
	b = append(b, kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, flags)
	b = append(append(b, target.AsSlice()...), option, 1)
	b = append(b, from[:]...)
	binary.BigEndian.PutUint16(b[at+2:], checksum(b[at-32:at], b[at:]))
	return b
}

// Advertisement returns the answer to a Packet that asks for an IPv6 address. A sender that checks
// whether the address is free has no address itself: then the answer goes to all nodes (RFC 4861,
// section 7.2.4).
func Advertisement(from MAC, p Packet) []byte {
	if p.From.IsUnspecified() {
		return Unsolicited(from, p.Asks)
	}
	return ndp(p.FromMAC, from, p.Asks, p.From, advertisement, flagSolicited|flagOverride, p.Asks, optionTarget)
}

// Unsolicited returns an advertisement of an IPv6 address to all nodes, with the Override flag: it
// replaces their cached entries (RFC 4861, section 7.2.6).
func Unsolicited(from MAC, a netip.Addr) []byte {
	return ndp(multicast(allNodes), from, a, allNodes, advertisement, flagOverride, a, optionTarget)
}

// Solicitation returns a neighbour solicitation for an address.
func Solicitation(from MAC, source, target netip.Addr) []byte {
	group := SolicitedNode(target)
	return ndp(multicast(group), from, source, group, solicitation, 0, target, optionSource)
}

// SolicitedNode is the group of all hosts that have an address with these last 24 bits (RFC 4291,
// section 2.7.1). Solicitations for the address are sent to it.
func SolicitedNode(a netip.Addr) netip.Addr {
	last := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: last[13], 14: last[14], 15: last[15]})
}

// multicast returns the Ethernet address of a group (RFC 2464, section 7).
func multicast(group netip.Addr) MAC {
	last := group.As16()
	return MAC{0x33, 0x33, last[12], last[13], last[14], last[15]}
}
