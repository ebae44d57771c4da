package header

import (
	"encoding/binary"
	"math/bits"
)

// martian4 reports whether an IPv4 address, in host order, cannot be the source or destination of a
// forwarded packet: "this network" 0/8, loopback 127/8, multicast 224/4, the limited broadcast
// address (RFC 6890 section 2.2.2), and link-local 169.254/16 (RFC 3927 section 7). Private ranges
// are not martian, nor is the rest of 240/4, which Linux routes (net/ipv4/route.c,
// ip_route_input_slow) and clusters give to pods.
func martian4(a uint32) bool {
	first := a >> 24
	return first-1 >= 223 && (first < 240 || a == 1<<32-1) || first == 127 || linkLocal4(a)
}

// martian6 is martian4 for an IPv6 address in two halves, host order: ::/96 with the unspecified
// address, the loopback address and the deprecated IPv4-compatible addresses, ::ffff:0:0/96, which
// never appears on the wire, multicast ff00::/8 and link-local fe80::/10 (RFC 4291 sections 2.5 to
// 2.7).
func martian6(hi, lo uint64) bool {
	if hi == 0 && (lo>>32 == 0 || lo>>32 == 0xffff) {
		return true
	}
	return hi>>56 == 0xff || linkLocal6(hi)
}

// linkLocal4 reports whether an IPv4 address, in host order, is link-local. It can be the source of
// an ICMP error from a router whose interface has no other address.
func linkLocal4(a uint32) bool { return a>>16 == 0xa9fe }

// linkLocal6 is linkLocal4 for the upper half of an IPv6 address. Such errors come only from a
// router on the same link, because routers do not forward them (RFC 4291 section 2.5.6).
func linkLocal6(hi uint64) bool { return hi>>54 == 0xfe80>>6 }

// Unicast reports whether an address can be the source or destination of a forwarded packet. Parse
// rejects packets with other addresses.
func Unicast(a *Addr) bool {
	if a.Is4() {
		return !martian4(binary.BigEndian.Uint32(a[12:]))
	}
	return !martian6(binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]))
}

// Prefix lengths of a site: /24 is the longest IPv4 prefix whose routes networks accept from each
// other, and a site gets at least an IPv6 /56 (RFC 6177).
const (
	SitePrefix4 = 24
	SitePrefix6 = 56
)

// Prefix returns the first bits of an address, bits4 for IPv4 and bits6 for IPv6, followed by
// zeros, as two words. For given lengths, different prefixes of either family have different words.
func (a *Addr) Prefix(bits4, bits6 int) (hi, lo uint64) {
	bits := bits6
	if a.Is4() {
		bits = 96 + bits4 // behind ::ffff:0:0/96
	}
	hi, lo = binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	return hi & (^uint64(0) << max(64-bits, 0)), lo & (^uint64(0) << min(128-bits, 64))
}

// Fold returns 32 bits of an address: an IPv4 address as it is, or a hash of an IPv6 address, which
// is one folded 64x64 multiplication of wyhash. An exclusive or of the words would be the same for
// 2001:db8:0:1::2 and 2001:db8:0:2::1. Records of flows keep it (flowtable.NodeMark).
func (a *Addr) Fold() uint32 {
	hi, lo := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	if a.Is4() {
		return uint32(lo)
	}
	upper, lower := bits.Mul64(hi^0xa0761d6478bd642f, lo^0xe7037ed1a0b428db)
	h := upper ^ lower
	return uint32(h>>32) ^ uint32(h)
}

// setMapped sets a zero address to the mapped form of four bytes. It uses one store: a load that is
// larger than the stores before it waits until they reach the cache (6 ns per packet).
func (a *Addr) setMapped(b *[4]byte) {
	const prefix = 0xffff << 16 // bytes 10 and 11
	binary.LittleEndian.PutUint64(a[8:], prefix|uint64(binary.LittleEndian.Uint32(b[:]))<<32)
}
