package pipeline

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// flow is what must be known of a flow to make its packets. Of an IPv6 client, client is the low end of
// the address.
type flow struct {
	client               uint32
	clientPort, snatPort uint16
	service, pod         uint32
	snat, proto          uint8
}

// kind is which of a flow's packets a frame is.
type kind uint8

const (
	fromClient kind = iota // a TCP segment with an ACK, or a datagram
	opening                // SYN, or a datagram
	fromBackend
	answer // SYN-ACK, or a datagram
)

// tuple is a packet's, on the wire.
func (w *world) tuple(f *flow, k kind) header.Tuple {
	if k == fromClient || k == opening {
		return header.Tuple{
			Src: clientAddr(w.v6, f.client), Dst: vipAddr(w.v6, int(f.service)),
			SrcPort: f.clientPort, DstPort: frontendPort, Proto: f.proto, V6: w.v6,
		}
	}
	return header.Tuple{
		Src: podAddr(w.v6, int(f.pod)), Dst: snatAddr(w.v6, int(f.snat)),
		SrcPort: backendPort, DstPort: f.snatPort, Proto: f.proto, V6: w.v6,
	}
}

const (
	minFrame  = 60 // without FCS
	maxFrame  = 14 + 40 + 20
	udpBytes4 = minFrame - header.EthernetBytes - header.IPv4Bytes
	udpBytes6 = maxFrame - header.EthernetBytes - header.IPv6Bytes
	frameTTL  = 64
)

// frame writes a packet of a flow, as short as Ethernet lets it be: over IPv4 60 bytes, of
// which TCP leaves 6 for padding; over IPv6 74. The tag is in the TCP sequence number or in the
// first bytes of the datagram. It returns the length.
func (w *world) frame(b *[128]byte, f *flow, k kind, tag uint32) int {
	t := w.tuple(f, k)
	*b = [128]byte{}
	copy(b[0:6], macOurs[:])
	copy(b[6:12], macClient[:])
	l4, size := header.EthernetBytes+header.IPv4Bytes, header.TCPBytes
	if w.v6 {
		l4 = header.EthernetBytes + header.IPv6Bytes
	}
	switch {
	case f.proto == header.ProtoUDP && w.v6:
		size = udpBytes6
	case f.proto == header.ProtoUDP:
		size = udpBytes4
	}
	ip := b[header.EthernetBytes:l4]
	if w.v6 {
		binary.BigEndian.PutUint16(b[12:], header.EtherTypeIPv6)
		writeIPv6(ip, &t, size)
	} else {
		binary.BigEndian.PutUint16(b[12:], header.EtherTypeIPv4)
		writeIPv4(ip, &t, size)
	}
	writeTransport(b[l4:l4+size], &t, k, tag)
	return max(l4+size, minFrame)
}

func writeIPv4(ip []byte, t *header.Tuple, payload int) {
	ip[0], ip[8], ip[9] = 0x45, frameTTL, t.Proto
	binary.BigEndian.PutUint16(ip[2:], uint16(header.IPv4Bytes+payload))
	ip[6] = 0x40 // don't fragment
	src, dst := t.Src.As4(), t.Dst.As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip[:header.IPv4Bytes]))
}

func writeIPv6(ip []byte, t *header.Tuple, payload int) {
	ip[0], ip[6], ip[7] = 0x60, t.Proto, frameTTL
	binary.BigEndian.PutUint16(ip[4:], uint16(payload))
	copy(ip[8:], t.Src[:])
	copy(ip[24:], t.Dst[:])
}

func writeTransport(b []byte, t *header.Tuple, k kind, tag uint32) {
	binary.BigEndian.PutUint16(b[0:], t.SrcPort)
	binary.BigEndian.PutUint16(b[2:], t.DstPort)
	field := b[6:8]
	if t.Proto == header.ProtoTCP {
		binary.BigEndian.PutUint32(b[4:], tag)
		b[12], b[13] = 5<<4, tcpFlags(k)
		field = b[16:18]
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
		binary.BigEndian.PutUint32(b[8:], tag)
	}
	sum := checksum.Add(checksum.Sum(b), pseudo(t, len(b)))
	if sum = ^sum; sum == 0 && t.Proto == header.ProtoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

func tcpFlags(k kind) uint8 {
	switch k {
	case opening:
		return header.TCPSYN
	case answer:
		return header.TCPSYN | header.TCPACK
	}
	return header.TCPACK
}

// pseudo is the sum of the pseudo header: RFC 9293 section 3.1, RFC 8200 section 8.1.
func pseudo(t *header.Tuple, bytes int) uint16 {
	src, dst := t.Src[:], t.Dst[:]
	if !t.V6 {
		src, dst = src[12:], dst[12:]
	}
	sum := checksum.Add(checksum.Sum(src), checksum.Sum(dst))
	return checksum.Add(sum, checksum.Add(uint16(t.Proto), uint16(bytes)))
}

// tagOf reads the tag of a frame that was sent.
func tagOf(frame []byte, p *header.Packet) uint32 {
	if p.Tuple.Proto == header.ProtoTCP {
		return binary.BigEndian.Uint32(frame[p.L4+4:])
	}
	return binary.BigEndian.Uint32(frame[p.L4+8:])
}
