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

// Plain4 judges an IPv4 packet in a frame of so many bytes. It returns where the packet
// ends, in bytes from the frame's start, or 0 if it is not plain. special says that it is a
// TCP segment that opens or closes.
func Plain4(w *[Window4Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	// EtherType, version and header length, DSCP.
	kind := binary.LittleEndian.Uint32(w[12:16])&0xffffff ^ (0x45<<16 | EtherTypeIPv4>>8)
	// Total length, identification, flags and fragment offset, TTL, protocol.
	second := binary.LittleEndian.Uint64(w[16:24])
	totalBytes := uint32(bits.ReverseBytes16(uint16(second)))
	fragment := second >> 32 & 0xff3f // all but DF and the reserved bit
	addrs := binary.BigEndian.Uint64(w[26:34])
	if kind != 0 || w[0]&1 != 0 || fragment != 0 || w[22] <= 1 ||
		plainMartian(uint32(addrs>>32)) || plainMartian(uint32(addrs)) || uint32(addrs>>32) == uint32(addrs) ||
		EthernetBytes+totalBytes > frameBytes {
		return 0, false
	}
	sum, carry := bits.Add64(binary.LittleEndian.Uint64(w[14:22]), binary.LittleEndian.Uint64(w[22:30]), 0)
	sum, carry = bits.Add64(sum, uint64(binary.LittleEndian.Uint32(w[30:34])), carry)
	if !foldsToOnes(sum, carry) {
		return 0, false
	}
	verdict, flags := plainPorts((*[20]byte)(w[plain4:]), w[23], totalBytes-IPv4Bytes)
	if int32(verdict) < 0 {
		return 0, false
	}
	return EthernetBytes + totalBytes, flags != 0
}

// foldsToOnes says whether a ones-complement sum, and its carry, is 0xffff. Byte order does not matter to it.
func foldsToOnes(sum, carry uint64) bool {
	sum, carry = bits.Add64(sum, carry, 0)
	sum += carry
	half, c := bits.Add32(uint32(sum>>32), uint32(sum), 0)
	half += c
	return half>>16+half&0xffff == 0xffff || half == 0xffffffff
}

// plainMartian is martian4 with 240/4 among the martians: what is there is not plain.
func plainMartian(a uint32) bool {
	first := a >> 24
	return first-1 >= 223 || first == 127 || a>>16 == 0xa9fe
}

// plainPorts judges the transport header t of a packet with so many bytes behind the IP header:
// the sign bit of verdict says no.
func plainPorts(t *[20]byte, proto uint8, have uint32) (verdict, flags uint32) {
	p := &plainTransports[proto]
	ports := binary.LittleEndian.Uint32(t[0:4])
	length := uint32(t[12]>>4)*4&p.tcp | uint32(binary.BigEndian.Uint16(t[4:6]))&^p.tcp
	flags = plainFlags[t[13]] & p.tcp
	return (length - p.least) | (have - length) | p.unknown | flags | (ports&0xffff - 1) | (ports>>16 - 1), flags
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
	verdict, flags := plainPorts((*[20]byte)(w[plain6:]), w[20], payloadBytes)
	// RFC 8200 section 8.1: UDP has a checksum over IPv6.
	if int32(verdict) < 0 || w[20] == ProtoUDP && w[plain6+6]|w[plain6+7] == 0 {
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

// PlainKey6 is PlainKey4 for IPv6: source and destination are two words each, big endian.
func PlainKey6(w *[Window6Bytes]byte) (addrs [4]uint64, ports uint32) {
	for i := range addrs {
		addrs[i] = binary.BigEndian.Uint64(w[22+8*i:])
	}
	return addrs, binary.BigEndian.Uint32(w[54:58])
}

// PlainProto6 returns its protocol.
func PlainProto6(w *[Window6Bytes]byte) uint8 { return w[20] }
