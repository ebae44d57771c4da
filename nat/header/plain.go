package header

import (
	"encoding/binary"
	"math/bits"
)

// Plain is what most packets are: in an untagged frame for one receiver, IPv4 without options
// or IPv6 without extension headers, whole, with a TTL to spare, TCP or UDP. Plain4 and Plain6
// decide about such a packet what Parse decides, in a quarter of the time; of what they
// do not take, nothing is known, and Parse must be asked.
//
// Both look at a window of the frame's memory that may reach beyond its end, and believe
// nothing there.

// Windows that Plain4 and Plain6 look at: from the Ethernet header to the end of a TCP header
// without options, rounded up.
const (
	Window4Bytes = 64
	Window6Bytes = 96
)

// Offsets of a plain packet from the start of its frame, in bytes.
const (
	plain4 = EthernetBytes + IPv4Bytes // transport header
	plain6 = EthernetBytes + IPv6Bytes
)

// plainTransport is what Plain must know of a transport, by protocol number; no branch depends on
// which it is, as TCP and UDP come mixed.
type plainTransport struct {
	tcp     uint32 // all ones for TCP
	least   uint32 // bytes of header
	unknown uint32 // the sign bit where it is neither TCP nor UDP
}

var plainTransports = makePlainTransports()

func makePlainTransports() (t [256]plainTransport) {
	for i := range t {
		t[i].unknown = 1 << 31
	}
	t[ProtoTCP] = plainTransport{tcp: 1<<32 - 1, least: TCPBytes}
	t[ProtoUDP] = plainTransport{least: UDPBytes}
	return t
}

// plainFlags says, by a TCP header's flags byte, whether a segment may be plain (0) or must be refused
// (1 << 31), and whether it does nothing but acknowledge and carry data (0) or more (1).
var plainFlags = makePlainFlags()

func makePlainFlags() (f [256]uint32) {
	for i := range f {
		if validTCPFlags>>(i&judgedTCPFlags)&1 == 0 {
			f[i] = 1 << 31
		} else if i&(TCPSYN|TCPFIN|TCPRST|TCPACK) != TCPACK {
			f[i] = 1
		}
	}
	return f
}

// plainOctets says, by the first octet of an IPv4 address, whether addresses with it may be martians (martian4).
var plainOctets = makePlainOctets()

func makePlainOctets() (t [256]uint8) {
	t[0], t[127], t[169] = 1, 1, 1
	for i := 224; i < 256; i++ {
		t[i] = 1
	}
	return t
}

// plainOctets6 says so of IPv6 addresses (martian6).
var plainOctets6 = [256]uint8{0: 1, 0xfe: 1, 0xff: 1}

// MayBePlain4 says whether a frame is of IPv4 without a tag.
func MayBePlain4(w *[Window4Bytes]byte) bool {
	return binary.LittleEndian.Uint16(w[12:14]) == EtherTypeIPv4>>8
}

// Plain4 judges an IPv4 packet in a frame of so many bytes. It returns where the packet
// ends, in bytes from the frame's start, or 0 if it is not plain. special says that it is a
// TCP segment that opens or closes.
func Plain4(w *[Window4Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	// Each byte is loaded once: where two loads overlap, the compiler would assemble both from single bytes.
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version and header length, DSCP, total length, ID
	y := binary.LittleEndian.Uint32(w[20:24]) // fragment, TTL, protocol
	z := binary.LittleEndian.Uint64(w[26:34]) // source, destination
	src, dst := uint32(z), uint32(z>>32)
	const kind = 0x45<<16 | EtherTypeIPv4>>8
	// Of the fragment's bits DF and the reserved one may be set.
	if uint32(x)&0xffffff != kind || w[0]&1 != 0 || y&0xff3f != 0 || uint8(y>>16) <= 1 || src == dst {
		return 0, false
	}
	if plainOctets[uint8(src)]|plainOctets[uint8(dst)] != 0 && (martian4(bits.ReverseBytes32(src)) || martian4(bits.ReverseBytes32(dst))) {
		return 0, false
	}
	// 2^16 and 2^32 are 1 modulo 65,535, in either byte order: the sum of the header's words is a
	// multiple of 0xffff if and only if that of its double words is. It is not 0.
	sum := x>>16 + uint64(y) + uint64(binary.LittleEndian.Uint16(w[24:26])) + uint64(src) + uint64(dst)
	if sum%0xffff != 0 {
		return 0, false
	}
	totalBytes := uint32(bits.ReverseBytes16(uint16(x >> 32)))
	// The transport: the sign bit of verdict says no. Plain6 has the same lines; a call costs a nanosecond.
	t := (*[20]byte)(w[plain4:])
	p := &plainTransports[y>>24]
	ports := binary.LittleEndian.Uint32(t[0:4])
	length := uint32(t[12]>>4)*4&p.tcp | uint32(binary.BigEndian.Uint16(t[4:6]))&^p.tcp
	flags := plainFlags[t[13]] & p.tcp
	verdict := (length - p.least) | (totalBytes - IPv4Bytes - length) | p.unknown | flags |
		(ports&0xffff - 1) | (ports>>16 - 1) | (frameBytes - EthernetBytes - totalBytes)
	if int32(verdict) < 0 {
		return 0, false
	}
	return EthernetBytes + totalBytes, flags != 0
}

// Plain6 is Plain4 for IPv6.
func Plain6(w *[Window6Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version, traffic class, flow label, payload length
	y := binary.LittleEndian.Uint16(w[20:22]) // protocol, hop limit
	src1, src2 := binary.LittleEndian.Uint64(w[22:30]), binary.LittleEndian.Uint64(w[30:38])
	dst1, dst2 := binary.LittleEndian.Uint64(w[38:46]), binary.LittleEndian.Uint64(w[46:54])
	payloadBytes := uint32(bits.ReverseBytes16(uint16(x >> 48)))
	const kind = 0x60<<16 | (EtherTypeIPv6&0xff)<<8 | EtherTypeIPv6>>8
	if uint32(x)&0xf0ffff != kind || w[0]&1 != 0 || y>>8 <= 1 || (src1^dst1)|(src2^dst2) == 0 ||
		EthernetBytes+IPv6Bytes+payloadBytes > frameBytes {
		return 0, false
	}
	if plainOctets6[uint8(src1)]|plainOctets6[uint8(dst1)] != 0 &&
		(martian6(bits.ReverseBytes64(src1), bits.ReverseBytes64(src2)) || martian6(bits.ReverseBytes64(dst1), bits.ReverseBytes64(dst2))) {
		return 0, false
	}
	t := (*[20]byte)(w[plain6:])
	p := &plainTransports[uint8(y)]
	ports := binary.LittleEndian.Uint32(t[0:4])
	length := uint32(t[12]>>4)*4&p.tcp | uint32(binary.BigEndian.Uint16(t[4:6]))&^p.tcp
	flags := plainFlags[t[13]] & p.tcp
	verdict := (length - p.least) | (payloadBytes - length) | p.unknown | flags | (ports&0xffff - 1) | (ports>>16 - 1)
	// RFC 8200 section 8.1: UDP has a checksum over IPv6.
	if int32(verdict) < 0 || binary.LittleEndian.Uint16(t[6:8]) == 0 && uint8(y) == ProtoUDP {
		return 0, false
	}
	return EthernetBytes + IPv6Bytes + payloadBytes, flags != 0
}

// PlainKey4 returns the key of a plain packet: source<<32 | destination, and the same of the ports << 16.
func PlainKey4(w *[Window4Bytes]byte) (addrs uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[26:34]), binary.BigEndian.Uint32(w[34:38])
}

// PlainProto4 returns its protocol.
func PlainProto4(w *[Window4Bytes]byte) uint8 { return w[23] }

// PlainKey6 returns source (a, b) and destination (c, d) of a plain IPv6 packet, big endian, and the ports as
// PlainKey4 does.
func PlainKey6(w *[Window6Bytes]byte) (a, b, c, d uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[22:30]), binary.BigEndian.Uint64(w[30:38]),
		binary.BigEndian.Uint64(w[38:46]), binary.BigEndian.Uint64(w[46:54]), binary.BigEndian.Uint32(w[54:58])
}

// PlainProto6 returns its protocol.
func PlainProto6(w *[Window6Bytes]byte) uint8 { return w[20] }
