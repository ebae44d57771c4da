package header

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/checksum"
)

// Delta is what replacing one tuple by another adds to ones-complement checksums (RFC 1624): IP to
// the IPv4 header checksum (addresses), L4 to the TCP, UDP, and ICMPv6 checksums (addresses and
// ports), and to the ICMP checksum, which has no pseudo-header (identifier). It depends only on the
// tuples, so a flow stores it once; the other direction uses its complement. SCTP's CRC also
// depends on the length (package crc32c) and does not use L4.
type Delta struct{ IP, L4 uint16 }

// DeltaOf returns the delta of packets that arrive as in and leave as out.
func DeltaOf(in, out *Tuple) Delta {
	ip := checksum.Add(^in.sumAddrs(), out.sumAddrs())
	ports := checksum.Delta(in.SrcPort, out.SrcPort)
	switch in.Proto {
	case ProtoICMP: // no pseudo-header, one identifier
		return Delta{IP: ip, L4: ports}
	case ProtoICMPv6: // one identifier
		return Delta{IP: ip, L4: checksum.Add(ip, ports)}
	}
	ports = checksum.Add(ports, checksum.Delta(in.DstPort, out.DstPort))
	return Delta{IP: ip, L4: checksum.Add(ip, ports)}
}

// Reverse returns the delta of packets in the other direction.
func (d Delta) Reverse() Delta { return Delta{^d.IP, ^d.L4} }

// sumAddrs adds both addresses. The prefix of mapped addresses adds 0xffff, a form of zero.
func (t *Tuple) sumAddrs() uint16 {
	return checksum.Add(t.Src.Sum(), t.Dst.Sum())
}

// Sum returns the ones-complement sum of an address.
func (a *Addr) Sum() uint16 {
	s, carry := bits.Add64(binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), 0)
	return checksum.Fold(s + carry)
}
