// Package vxlan writes the headers of a VXLAN tunnel (RFC 7348) in front of an IP packet:
//
//	outer IP | UDP | VXLAN | inner Ethernet | IP packet
//	20 or 40 | 8   | 8     | 14             |
//
// A Header has all fields that packets to one end of the tunnel share, so each packet costs a copy
// and a few fields. The UDP checksum is 0, which RFC 7348 section 5 asks for and RFC 6935 allows
// over IPv6 if the receiver accepts it.
package vxlan

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

const (
	// Port is the UDP destination port that IANA has assigned.
	Port = 4789
	// MaxBytes is the length of the longest Header, over IPv6.
	MaxBytes = header.IPv6Bytes + innerBytes

	HeaderBytes = 8
	innerBytes  = header.UDPBytes + HeaderBytes + header.EthernetBytes

	flagVNI = 0x08 // RFC 7348 section 5: the VNI is valid
	ipv4DF  = 0x4000
)

// NodeMAC is the address of the tunnel's device on each node, and GatewayMAC the source of inner
// frames. Both are locally administered.
var (
	NodeMAC    = [6]byte{0x02, 0x73, 0x6c, 0x75, 0x63, 0x01}
	GatewayMAC = [6]byte{0x02, 0x73, 0x6c, 0x75, 0x63, 0x02}
)

// Tunnel has the parameters that all ends of a tunnel share.
type Tunnel struct {
	VNI  uint32 // 1 to 1<<24 - 1
	Port uint16 // UDP destination port
}

// Header has the headers from one address to another.
type Header struct {
	b   [MaxBytes]byte // the last Bytes of them; the rest is 0
	ip  uint8          // bytes of the IP header
	sum uint16         // of the IPv4 header, as far as all packets share it
}

// Offsets in Header.b. The headers after the IP header are at the same place for both families.
const (
	udpAt   = MaxBytes - innerBytes
	ipv4At  = udpAt - header.IPv4Bytes
	vxlanAt = udpAt + header.UDPBytes
	innerAt = vxlanAt + HeaderBytes
)

// New returns the headers from src to dst, which must be of one family. ttl is the outer TTL or hop
// limit.
func New(t Tunnel, src, dst header.Addr, ttl uint8) (h Header) {
	if dst.Is4() {
		h.ip = header.IPv4Bytes
		ip := h.b[ipv4At:]
		ip[0], ip[8], ip[9] = 0x45, ttl, header.ProtoUDP
		*(*[4]byte)(ip[12:]), *(*[4]byte)(ip[16:]) = src.As4(), dst.As4()
		h.sum = checksum.Sum(ip[:header.IPv4Bytes])
	} else {
		h.ip = header.IPv6Bytes
		h.b[0], h.b[6], h.b[7] = 0x60, header.ProtoUDP, ttl
		*(*[16]byte)(h.b[8:]), *(*[16]byte)(h.b[24:]) = src, dst
	}
	binary.BigEndian.PutUint16(h.b[udpAt+2:], t.Port)
	h.b[vxlanAt] = flagVNI
	binary.BigEndian.PutUint32(h.b[vxlanAt+4:], t.VNI<<8)
	copy(h.b[innerAt:], NodeMAC[:])
	copy(h.b[innerAt+6:], GatewayMAC[:])
	return h
}

// Bytes returns the length of the headers.
func (h *Header) Bytes() int { return int(h.ip) + innerBytes }

// V6 reports whether the outer header is IPv6.
func (h *Header) V6() bool { return h.ip == header.IPv6Bytes }

// Packet has the fields that differ between packets.
type Packet struct {
	Bytes  uint16 // length of the inner IP packet
	V6     bool   // the inner packet is IPv6
	TOS    uint8  // of the inner packet, or its traffic class: copied (RFC 6040 section 4.1)
	DF     bool   // the outer IPv4 packet must not be fragmented
	ID     uint16 // of the outer IPv4 packet, if it may be fragmented
	Source uint16 // UDP source port
}

// SourcePort returns the UDP source port for a flow's hash: 49152 to 65535 (RFC 7348 section 5), so
// that NICs and routers spread the flows of one tunnel.
func SourcePort(hash uint64) uint16 { return uint16(hash>>48) | 0xc000 }

// Put writes the headers of a packet into the last Bytes of b, which end where the packet begins.
// It overwrites all of b: so the copy has a constant length.
func (h *Header) Put(b *[MaxBytes]byte, p *Packet) {
	*b = h.b
	total := uint16(h.ip) + innerBytes + p.Bytes
	if h.V6() {
		binary.BigEndian.PutUint16(b[:], 0x6000|uint16(p.TOS)<<4)
		binary.BigEndian.PutUint16(b[4:], total-header.IPv6Bytes)
	} else {
		fragment, id := uint16(ipv4DF), uint16(0) // an atomic datagram needs no ID (RFC 6864 section 4.1)
		if !p.DF {
			fragment, id = 0, p.ID
		}
		b[ipv4At+1] = p.TOS
		binary.BigEndian.PutUint16(b[ipv4At+2:], total)
		binary.BigEndian.PutUint16(b[ipv4At+4:], id)
		binary.BigEndian.PutUint16(b[ipv4At+6:], fragment)
		sum := checksum.Fold(uint64(h.sum) + uint64(p.TOS) + uint64(total) + uint64(id) + uint64(fragment))
		binary.BigEndian.PutUint16(b[ipv4At+10:], ^sum)
	}
	binary.BigEndian.PutUint16(b[udpAt:], p.Source)
	binary.BigEndian.PutUint16(b[udpAt+4:], total-uint16(h.ip))
	etherType := uint16(header.EtherTypeIPv4)
	if p.V6 {
		etherType = header.EtherTypeIPv6
	}
	binary.BigEndian.PutUint16(b[MaxBytes-2:], etherType)
}
