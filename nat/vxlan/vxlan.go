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

	vxlanBytes = 8
	innerBytes = header.UDPBytes + vxlanBytes + header.EthernetBytes

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
	b   [MaxBytes]byte
	ip  uint8  // bytes of the IP header
	sum uint16 // of the IPv4 header, as far as all packets share it
}

// New returns the headers from src to dst, which must be of one family. ttl is the outer TTL or hop
// limit.
func New(t Tunnel, src, dst header.Addr, ttl uint8) (h Header) {
	if dst.Is4() {
		h.ip = header.IPv4Bytes
		h.b[0], h.b[8], h.b[9] = 0x45, ttl, header.ProtoUDP
		*(*[4]byte)(h.b[12:]), *(*[4]byte)(h.b[16:]) = src.As4(), dst.As4()
		h.sum = checksum.Sum(h.b[:header.IPv4Bytes])
	} else {
		h.ip = header.IPv6Bytes
		h.b[0], h.b[6], h.b[7] = 0x60, header.ProtoUDP, ttl
		*(*[16]byte)(h.b[8:]), *(*[16]byte)(h.b[24:]) = src, dst
	}
	u := h.b[h.ip:]
	binary.BigEndian.PutUint16(u[2:], t.Port)
	v := u[header.UDPBytes:]
	v[0] = flagVNI
	binary.BigEndian.PutUint32(v[4:], t.VNI<<8)
	e := v[vxlanBytes:]
	copy(e, NodeMAC[:])
	copy(e[6:], GatewayMAC[:])
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

// Put writes the headers of a packet into b, which must have at least Bytes bytes.
func (h *Header) Put(b []byte, p *Packet) {
	n := h.Bytes()
	b = b[:n:n]
	copy(b, h.b[:n])
	total := uint16(n) + p.Bytes
	if h.V6() {
		binary.BigEndian.PutUint16(b, 0x6000|uint16(p.TOS)<<4)
		binary.BigEndian.PutUint16(b[4:], total-header.IPv6Bytes)
	} else {
		fragment, id := uint16(ipv4DF), uint16(0) // an atomic datagram needs no ID (RFC 6864 section 4.1)
		if !p.DF {
			fragment, id = 0, p.ID
		}
		b[1] = p.TOS
		binary.BigEndian.PutUint16(b[2:], total)
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], fragment)
		sum := checksum.Add(checksum.Add(h.sum, uint16(p.TOS)), checksum.Add(total, checksum.Add(id, fragment)))
		binary.BigEndian.PutUint16(b[10:], ^sum)
	}
	u := b[h.ip:]
	binary.BigEndian.PutUint16(u, p.Source)
	binary.BigEndian.PutUint16(u[4:], total-uint16(h.ip))
	etherType := uint16(header.EtherTypeIPv4)
	if p.V6 {
		etherType = header.EtherTypeIPv6
	}
	binary.BigEndian.PutUint16(b[n-2:], etherType)
}
