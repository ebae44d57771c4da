package pipeline

import (
	"encoding/binary"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/header"
)

// flow holds the fields from which a flow's packets are made. Of an IPv6 client, client is the low
// end of the address.
type flow struct {
	client               uint32
	clientPort, snatPort uint16
	service, pod         uint32
	snat, proto          uint8
}

// kind is the kind of a packet within its flow.
type kind uint8

const (
	fromClient kind = iota // a TCP segment with an ACK, or a datagram
	opening                // SYN, or a datagram
	fromBackend
	answer // SYN-ACK, or a datagram
)

// tuple is the tuple of a packet on the wire.
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
)

// frame writes a packet of a flow with the least length that Ethernet allows: over IPv4 60 bytes,
// of which TCP leaves 6 for padding; over IPv6 74. The tag is in the TCP sequence number or in the
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
	ip, segment := b[header.EthernetBytes:l4], b[l4:l4+size]
	writeTransport(segment, &t, k, tag)
	if w.v6 {
		binary.BigEndian.PutUint16(b[12:], header.EtherTypeIPv6)
		framing.IPv6(ip, t.Proto, framing.HopLimit, t.Src[:], t.Dst[:], size)
		framing.Seal(segment, ip[8:], t.Proto)
	} else {
		binary.BigEndian.PutUint16(b[12:], header.EtherTypeIPv4)
		framing.IPv4(ip, t.Proto, t.Src[12:], t.Dst[12:], size)
		framing.Seal(segment, ip[12:], t.Proto)
	}
	return max(l4+size, minFrame)
}

func writeTransport(b []byte, t *header.Tuple, k kind, tag uint32) {
	binary.BigEndian.PutUint16(b[0:], t.SrcPort)
	binary.BigEndian.PutUint16(b[2:], t.DstPort)
	if t.Proto == header.ProtoTCP {
		binary.BigEndian.PutUint32(b[4:], tag)
		if k != opening { // within one wave, the number of the SYN-ACK is the client's tag
			binary.BigEndian.PutUint32(b[8:], tag+1)
		}
		b[12], b[13] = 5<<4, tcpFlags(k)
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
		binary.BigEndian.PutUint32(b[8:], tag)
	}
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

// tagOf reads the tag of a sent frame.
func tagOf(frame []byte, p *header.Packet) uint32 {
	if p.Tuple.Proto == header.ProtoTCP {
		return binary.BigEndian.Uint32(frame[p.L4+4:])
	}
	return binary.BigEndian.Uint32(frame[p.L4+8:])
}
