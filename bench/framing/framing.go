// Package framing writes the common parts of the laboratory's packets: IP headers and transport
// checksums. The generators write the parts that differ between packets of one kind (addresses,
// tags, sequence numbers) themselves; test/bed/stateless uses templates for that.
package framing

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// HopLimit is the TTL and the hop limit of packets.
const HopLimit = 64

// IPv4 writes the header of a packet with n bytes behind it, with the don't-fragment flag. The
// addresses may be in the header that it overwrites.
func IPv4(ip []byte, protocol uint8, src, dst []byte, n int) {
	ip = ip[:header.IPv4Bytes]
	ip[0], ip[1] = 0x45, 0
	binary.BigEndian.PutUint16(ip[2:], uint16(header.IPv4Bytes+n))
	binary.BigEndian.PutUint32(ip[4:], 0x4000) // identification 0, do not fragment
	ip[8], ip[9], ip[10], ip[11] = HopLimit, protocol, 0, 0
	copy(ip[12:16], src)
	copy(ip[16:20], dst)
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
}

// IPv6 writes the header of a packet with n bytes behind it.
func IPv6(ip []byte, protocol, hopLimit uint8, src, dst []byte, n int) {
	binary.BigEndian.PutUint32(ip, 6<<28)
	binary.BigEndian.PutUint16(ip[4:], uint16(n))
	ip[6], ip[7] = protocol, hopLimit
	copy(ip[8:24], src)
	copy(ip[24:40], dst)
}

// Sum is the ones-complement sum that the transport checksum covers: a segment, datagram or message
// and the pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1). addresses are the two
// addresses of the IP header, one behind the other. It is 0xffff if the checksum in b is correct.
func Sum(b, addresses []byte, protocol uint8) uint16 {
	pseudo := checksum.Add(uint16(protocol), uint16(len(b)))
	return checksum.Add(checksum.Sum(b), checksum.Add(checksum.Sum(addresses), pseudo))
}

// Seal writes the checksum of a TCP segment, a UDP datagram or an ICMPv6 message.
func Seal(b, addresses []byte, protocol uint8) {
	at := 16
	switch protocol {
	case header.ProtoUDP:
		at = 6
	case header.ProtoICMPv6:
		at = 2
	}
	b[at], b[at+1] = 0, 0
	sum := ^Sum(b, addresses, protocol)
	if sum == 0 && protocol == header.ProtoUDP {
		sum = 0xffff // RFC 768: zero means no checksum
	}
	binary.BigEndian.PutUint16(b[at:], sum)
}
