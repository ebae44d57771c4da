// Package header reads and checks packet headers: Ethernet, VLAN tags, IPv4, IPv6 with its
// extension headers, TCP, UDP, SCTP, ICMP and ICMPv6. Package nat changes packets.
//
// The package does not allocate, and does not read outside of the memory that the caller provides.
package header

import "net/netip"

// Addr is an IP address as 16 bytes; IPv4 is written in mapped form
// ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). It is pointer-free and comparable.
type Addr [16]byte

// AddrFrom converts a netip.Addr. IPv4 and IPv4-mapped addresses become the same Addr.
func AddrFrom(a netip.Addr) Addr { return Addr(a.As16()) }

// AddrFrom4 converts four bytes in network order.
func AddrFrom4(a [4]byte) Addr {
	return Addr{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}

// Is4 reports whether a is an IPv4 address in mapped form.
func (a *Addr) Is4() bool {
	return *(*[12]byte)(a[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// As4 returns the last four bytes: the IPv4 address if Is4 returns true.
func (a *Addr) As4() [4]byte { return [4]byte(a[12:16]) }

// Netip converts to a netip.Addr, IPv4 unmapped.
func (a *Addr) Netip() netip.Addr { return netip.AddrFrom16(*a).Unmap() }

// String prints the address as netip does.
func (a Addr) String() string { return a.Netip().String() }

// Tuple is one direction of a flow as on the wire: a packet's source and destination. Ports are in
// host byte order. For ICMP and ICMPv6 queries both ports hold the identifier. Src and Dst are of
// one family.
type Tuple struct {
	Src, Dst         Addr
	SrcPort, DstPort uint16
	Proto            uint8 // IANA protocol number: ProtoTCP, ProtoUDP, ...
	V6               bool  // family, so that it need not be derived from the addresses
}

// Reverse returns the tuple of packets in the other direction.
func (t *Tuple) Reverse() Tuple {
	return Tuple{Src: t.Dst, Dst: t.Src, SrcPort: t.DstPort, DstPort: t.SrcPort, Proto: t.Proto, V6: t.V6}
}

// Stateful reports whether the protocol opens and closes connections: TCP connections or SCTP
// associations. Only a packet that opens one (Packet.TCPFlags: SYN) makes a flow, and the flow
// outlives its backend's place in the service.
func (t *Tuple) Stateful() bool { return Stateful(t.Proto) }

// Stateful is Tuple.Stateful for a protocol number.
func Stateful(proto uint8) bool { return proto == ProtoTCP || proto == ProtoSCTP }

// IANA protocol numbers.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)
