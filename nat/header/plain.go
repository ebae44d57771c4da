package header

import "encoding/binary"

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

// plainOctets says, by the first octet of an IPv4 address, whether addresses with it may be martians
// (martian4), or are in 240/4: those are not plain.
var plainOctets = makePlainOctets()

func makePlainOctets() (t [256]uint8) {
	t[0], t[127], t[169] = 1, 1, 1
	for i := 224; i < 256; i++ {
		t[i] = 1
	}
	return t
}

// MayBePlain4 says whether a frame is of IPv4 without a tag.
func MayBePlain4(w *[Window4Bytes]byte) bool {
	return binary.LittleEndian.Uint16(w[12:14]) == EtherTypeIPv4>>8
}

// Plain4 judges an IPv4 packet in a frame of so many bytes. It returns where the packet
// ends, in bytes from the frame's start, or 0 if it is not plain. special says that it is a
// TCP segment that opens or closes.
func Plain4(w *[Window4Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	// EtherType, version and header length, DSCP.
	kind := binary.LittleEndian.Uint32(w[12:16])&0xffffff ^ (0x45<<16 | EtherTypeIPv4>>8)
	fragment := binary.LittleEndian.Uint16(w[20:22]) & 0xff3f // all but DF and the reserved bit
	src, dst := binary.BigEndian.Uint32(w[26:30]), binary.BigEndian.Uint32(w[30:34])
	if kind != 0 || w[0]&1 != 0 || fragment != 0 || w[22] <= 1 || src == dst {
		return 0, false
	}
	if plainOctets[w[26]]|plainOctets[w[30]] != 0 && (w[26] >= 240 || w[30] >= 240 || martian4(src) || martian4(dst)) {
		return 0, false
	}
	// 2^16 and 2^32 are 1 modulo 65,535, in either byte order: the sum of the header's words is a
	// multiple of 0xffff if and only if that of its double words is. It is not 0.
	sum := uint64(binary.LittleEndian.Uint32(w[14:18])) + uint64(binary.LittleEndian.Uint32(w[18:22])) +
		uint64(binary.LittleEndian.Uint32(w[22:26])) + uint64(binary.LittleEndian.Uint32(w[26:30])) +
		uint64(binary.LittleEndian.Uint32(w[30:34]))
	if sum%0xffff != 0 {
		return 0, false
	}
	totalBytes := uint32(binary.BigEndian.Uint16(w[16:18]))
	// The transport: the sign bit of verdict says no. Plain6 has the same lines; a call costs a nanosecond.
	t := (*[20]byte)(w[plain4:])
	p := &plainTransports[w[23]]
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
	payloadBytes := uint32(binary.BigEndian.Uint16(w[18:20]))
	srcHi, srcLo := binary.BigEndian.Uint64(w[22:30]), binary.BigEndian.Uint64(w[30:38])
	dstHi, dstLo := binary.BigEndian.Uint64(w[38:46]), binary.BigEndian.Uint64(w[46:54])
	const kind = 0x60<<16 | (EtherTypeIPv6&0xff)<<8 | EtherTypeIPv6>>8
	if binary.LittleEndian.Uint32(w[12:16])&0xf0ffff != kind || w[0]&1 != 0 || w[21] <= 1 ||
		martian6(srcHi, srcLo) || martian6(dstHi, dstLo) || srcHi == dstHi && srcLo == dstLo ||
		EthernetBytes+IPv6Bytes+payloadBytes > frameBytes {
		return 0, false
	}
	t := (*[20]byte)(w[plain6:])
	p := &plainTransports[w[20]]
	ports := binary.LittleEndian.Uint32(t[0:4])
	length := uint32(t[12]>>4)*4&p.tcp | uint32(binary.BigEndian.Uint16(t[4:6]))&^p.tcp
	flags := plainFlags[t[13]] & p.tcp
	verdict := (length - p.least) | (payloadBytes - length) | p.unknown | flags | (ports&0xffff - 1) | (ports>>16 - 1)
	// RFC 8200 section 8.1: UDP has a checksum over IPv6.
	if int32(verdict) < 0 || t[6]|t[7] == 0 && w[20] == ProtoUDP {
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

// PlainKey6 sets addrs to source and destination of a plain IPv6 packet, two words each, big endian, and
// returns the ports as PlainKey4 does.
func PlainKey6(w *[Window6Bytes]byte, addrs *[4]uint64) (ports uint32) {
	addrs[0], addrs[1] = binary.BigEndian.Uint64(w[22:30]), binary.BigEndian.Uint64(w[30:38])
	addrs[2], addrs[3] = binary.BigEndian.Uint64(w[38:46]), binary.BigEndian.Uint64(w[46:54])
	return binary.BigEndian.Uint32(w[54:58])
}

// PlainProto6 returns its protocol.
func PlainProto6(w *[Window6Bytes]byte) uint8 { return w[20] }
