//go:build root

package xdpprog

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"sluice.dev/sluice/nat/header"
)

// pkt describes a packet. src determines the family.
type pkt struct {
	src, dst     string
	proto        uint8
	sport, dport uint16

	optionBytes int  // IPv4 options
	ext         []ex // IPv6 extension headers, in order
	fragOffset  int  // IPv4, bytes
	fragMore    bool // IPv4

	icmpType uint8 // with proto ICMP or ICMPv6
	quote    *pkt  // the packet that an ICMP error quotes, cut after 8 bytes of transport

	ttl   byte // or hop limit; 0: 64
	toMAC byte // first byte of the destination MAC
}

// ex is an IPv6 extension header of 8-byte units (AH: of the same size).
type ex struct {
	kind     uint8
	units    int
	fragment uint16 // third and fourth byte of a fragment header
}

const (
	hopopts, routing, fragment, auth, dstopts = 0, 43, 44, 51, 60
	more                                      = 1
)

func (p *pkt) v6() bool { return netip.MustParseAddr(p.src).Is6() }

func (p *pkt) isFragment() bool {
	return p.fragOffset > 0 || p.fragMore || slices.ContainsFunc(p.ext, func(e ex) bool {
		return e.kind == fragment && e.fragment&0xfff9 != 0
	})
}

// ip returns the IP packet.
func (p *pkt) ip() []byte {
	body := p.transport()
	src, dst := netip.MustParseAddr(p.src).AsSlice(), netip.MustParseAddr(p.dst).AsSlice()
	if !p.v6() {
		h := make([]byte, 20+p.optionBytes)
		h[0] = 0x40 | byte(len(h)/4)
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(body)))
		frag := uint16(p.fragOffset / 8)
		if p.fragMore {
			frag |= 0x2000
		}
		binary.BigEndian.PutUint16(h[6:], frag)
		h[8], h[9] = cmp.Or(p.ttl, 64), p.proto
		copy(h[12:], src)
		copy(h[16:], dst)
		binary.BigEndian.PutUint16(h[10:], ^sum(h))
		return append(h, body...)
	}
	h := make([]byte, 40)
	h[0], h[7] = 0x60, cmp.Or(p.ttl, 64)
	copy(h[8:], src)
	copy(h[24:], dst)
	next := &h[6]
	for _, e := range p.ext {
		*next = e.kind
		b := make([]byte, 8*e.units)
		b[1] = byte(e.units - 1)
		switch e.kind {
		case auth:
			b[1] = byte(2*e.units - 2)
		case fragment:
			b[1] = 0
			binary.BigEndian.PutUint16(b[2:], e.fragment)
		}
		h = append(h, b...)
		next = &h[len(h)-len(b)]
	}
	*next = p.proto
	h = append(h, body...)
	binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40))
	return h
}

func (p *pkt) transport() []byte {
	b := make([]byte, 8, 64)
	switch p.proto {
	case header.ProtoICMP, header.ProtoICMPv6:
		b[0] = p.icmpType
		if p.quote != nil {
			q := p.quote.ip()
			b = append(b, q[:len(q)-len(p.quote.transport())+8]...)
		}
	case header.ProtoTCP:
		b = append(b, make([]byte, 12)...)
		b[12], b[13] = 0x50, 0x02
		fallthrough
	default:
		binary.BigEndian.PutUint16(b, p.sport)
		binary.BigEndian.PutUint16(b[2:], p.dport)
	}
	if p.proto == header.ProtoUDP {
		binary.BigEndian.PutUint16(b[4:], 8)
	}
	return b
}

// frame puts the packet in Ethernet with VLAN tags, outermost first.
func (p *pkt) frame(tags ...uint16) []byte {
	b := []byte{p.toMAC, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for _, tag := range tags {
		b = binary.BigEndian.AppendUint16(b, tag)
		b = binary.BigEndian.AppendUint16(b, 7)
	}
	if p.v6() {
		b = append(b, 0x86, 0xdd)
	} else {
		b = append(b, 0x08, 0x00)
	}
	return append(b, p.ip()...)
}

// needs returns how many bytes of frame() the program needs for the rules.
func (p *pkt) needs(tags int) int {
	n := 14 + 4*tags + len(p.ip()) - len(p.transport())
	switch {
	case p.isFragment():
		// The program needs nothing after the fragment header or the IPv4 header.
		for i, e := range p.ext {
			if e.kind == fragment {
				for _, behind := range p.ext[i+1:] {
					n -= 8 * behind.units
				}
			}
		}
		return n
	case p.quote != nil && p.quote.isFragment():
		return n + 8 + p.quote.needs(0) - 14
	case p.quote != nil:
		return n + 8 + p.quote.needs(0) - 14
	case p.proto == header.ProtoICMP || p.proto == header.ProtoICMPv6:
		return n + 8
	}
	return n + 4
}

// addresses returns the number of bytes of frame() up to the end of the addresses.
func (p *pkt) addresses(tags int) int {
	if p.v6() {
		return 14 + 4*tags + 40
	}
	return 14 + 4*tags + 20
}

// withheld reports whether the destination is an address of the fixture that is the gateway's and
// not the node's, and the frame is unicast.
func (p *pkt) withheld(unserved bool) bool {
	return fixture().Addrs[addr(p.dst)].withheld(unserved) && p.toMAC&1 == 0
}

func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
