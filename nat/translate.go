package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/crc32c"
	"sluice.dev/sluice/nat/header"
)

// Offsets in bytes from the start of their headers.
const (
	ipv4LengthOffset   = 2
	ipv4IDOffset       = 4
	ipv4TTLOffset      = 8
	ipv4ChecksumOffset = 10
	ipv4SrcOffset      = 12
	ipv4DstOffset      = 16
	fragmentIDOffset   = 4 // RFC 8200 section 4.5
	ipv6LengthOffset   = 4
	ipv6HopOffset      = 7
	ipv6SrcOffset      = 8
	ipv6DstOffset      = 24

	srcPortOffset      = 0 // TCP, UDP and SCTP
	dstPortOffset      = 2
	tcpChecksumOffset  = 16
	udpChecksumOffset  = 6
	sctpChecksumOffset = 8
	icmpChecksumOffset = 2
	icmpIDOffset       = 4
)

// ttlDelta is what a decrement of the TTL adds to the sum: minus 0x0100, because the TTL is the
// high half of its word.
const ttlDelta = ^uint16(0x0100)

// DecrementTTL subtracts one from the TTL or hop limit, which must not be zero.
func DecrementTTL(frame []byte, p *header.Packet) {
	if p.Tuple.V6 {
		frame[p.L3+ipv6HopOffset]--
		return
	}
	h := (*[header.IPv4Bytes]byte)(frame[p.L3:])
	h[ipv4TTLOffset]--
	updateAt(h[ipv4ChecksumOffset:], ttlDelta)
}

// DecrementPlainTTL is DecrementTTL for the IP header of a plain packet (header.Plain). It also
// returns the TOS or traffic class, and the family.
func DecrementPlainTTL(ip []byte) (tos uint8, v6 bool) {
	if ip[0]>>4 == 6 {
		ip[ipv6HopOffset]--
		return ip[0]<<4 | ip[1]>>4, true
	}
	h := (*[header.IPv4Bytes]byte)(ip)
	h[ipv4TTLOffset]--
	updateAt(h[ipv4ChecksumOffset:], ttlDelta)
	return h[1], false
}

// Translate gives a packet the tuple out. d must be the delta from the packet's own tuple to out,
// which must have the same family and protocol. A later fragment has no ports to rewrite. An ICMP
// packet must be a query. As in all functions that change a packet, frame may be only the first
// part of the packet's frame, if header.ParseLong accepted it.
func Translate(frame []byte, p *header.Packet, out *header.Tuple, d header.Delta) {
	translateAddrs(frame, p, out, d)
	if p.Fragment == header.LaterFragment {
		return
	}
	b := p.Transport(frame)
	switch p.Tuple.Proto {
	case header.ProtoTCP:
		h := (*[header.TCPBytes]byte)(b)
		binary.BigEndian.PutUint16(h[srcPortOffset:], out.SrcPort)
		binary.BigEndian.PutUint16(h[dstPortOffset:], out.DstPort)
		updateAt(h[tcpChecksumOffset:], d.L4)
	case header.ProtoUDP:
		translateUDP((*[header.UDPBytes]byte)(b), out, d)
	case header.ProtoSCTP:
		translateSCTP((*[header.SCTPBytes]byte)(b), out, p.End-p.L4)
	case header.ProtoICMP, header.ProtoICMPv6:
		translateEcho(b, out.SrcPort, d)
	}
}

// translateAddrs rewrites the IP header.
func translateAddrs(frame []byte, p *header.Packet, out *header.Tuple, d header.Delta) {
	if p.Tuple.V6 {
		h := (*[header.IPv6Bytes]byte)(frame[p.L3:])
		*(*[16]byte)(h[ipv6SrcOffset:]) = out.Src
		*(*[16]byte)(h[ipv6DstOffset:]) = out.Dst
		return
	}
	h := (*[header.IPv4Bytes]byte)(frame[p.L3:])
	*(*[4]byte)(h[ipv4SrcOffset:]) = out.Src.As4()
	*(*[4]byte)(h[ipv4DstOffset:]) = out.Dst.As4()
	updateAt(h[ipv4ChecksumOffset:], d.IP)
}

// translateUDP leaves a checksum of zero, which means no checksum. If an updated checksum is zero,
// it is sent in its other form, 0xffff (RFC 768).
func translateUDP(h *[header.UDPBytes]byte, out *header.Tuple, d header.Delta) {
	binary.BigEndian.PutUint16(h[srcPortOffset:], out.SrcPort)
	binary.BigEndian.PutUint16(h[dstPortOffset:], out.DstPort)
	old := binary.BigEndian.Uint16(h[udpChecksumOffset:])
	if old == 0 {
		return
	}
	sum := checksum.Update(old, d.L4)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(h[udpChecksumOffset:], sum)
}

// translateSCTP rewrites the ports of an SCTP packet; bytes is the packet's length. A CRC of zero
// is a normal value: only SCTP inside of DTLS may omit the CRC (RFC 9653).
func translateSCTP(h *[header.SCTPBytes]byte, out *header.Tuple, bytes uint16) {
	difference := rewritePorts(h[:], out)
	field := h[sctpChecksumOffset:]
	binary.LittleEndian.PutUint32(field, binary.LittleEndian.Uint32(field)^crc32c.Delta(difference, bytes))
}

// rewritePorts rewrites the ports and returns the bits that changed, in little-endian order like
// CRC32c.
func rewritePorts(b []byte, out *header.Tuple) (difference uint32) {
	ports := b[:4:4]
	before := binary.LittleEndian.Uint32(ports)
	binary.BigEndian.PutUint16(ports[srcPortOffset:], out.SrcPort)
	binary.BigEndian.PutUint16(ports[dstPortOffset:], out.DstPort)
	return before ^ binary.LittleEndian.Uint32(ports)
}

// translateEcho rewrites the identifier of an ICMP or ICMPv6 query.
func translateEcho(message []byte, id uint16, d header.Delta) {
	binary.BigEndian.PutUint16(message[icmpIDOffset:], id)
	updateICMP(message, d.L4)
}

// updateICMP updates the checksum of an ICMP message. ICMP is the only protocol here whose checksum
// may cover only zeros (an echo reply has type and code zero, and no pseudo-header); then the
// correct form of zero is 0xffff.
func updateICMP(message []byte, delta uint16) {
	field := message[icmpChecksumOffset:]
	updateAt(field, delta)
	if field[0]|field[1] == 0 && checksum.Sum(message) == 0 {
		field[0], field[1] = 0xff, 0xff
	}
}

// SetFragmentID gives a fragment the identification of its datagram (package fragment), 16 bits
// over IPv4. No checksum covers the identification of IPv6.
func SetFragmentID(frame []byte, p *header.Packet, id uint32) {
	if p.Tuple.V6 {
		binary.BigEndian.PutUint32(frame[p.FragmentHeader+fragmentIDOffset:], id)
		return
	}
	setIPv4ID(frame, p, uint16(id))
}

func setIPv4ID(frame []byte, p *header.Packet, id uint16) {
	h := (*[header.IPv4Bytes]byte)(frame[p.L3:])
	old := binary.BigEndian.Uint16(h[ipv4IDOffset:])
	binary.BigEndian.PutUint16(h[ipv4IDOffset:], id)
	updateAt(h[ipv4ChecksumOffset:], checksum.Delta(old, id))
}

// updateAt updates the checksum field at the start of b.
func updateAt(b []byte, delta uint16) {
	binary.BigEndian.PutUint16(b, checksum.Update(binary.BigEndian.Uint16(b), delta))
}
