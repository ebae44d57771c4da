package header

import (
	"encoding/binary"
	"math/bits"
)

// Plain is what most packets are: in an untagged frame for one receiver, IPv4 without options or
// IPv6 without extension headers, whole, with a TTL to spare, TCP or UDP. Plain4 and Plain6 decide
// about such a packet what Parse decides, in a quarter of the time, and Inspect (inspect.go) does
// so for many, but for one thing: the tuple may be one that Parse refuses (martian, land, port 0).
// No packet with such a tuple matches a flow: the client's tuple went through Parse when the flow
// was made, and a reply's before the flow came to a state in which a plain reply matches
// (flowtable.Handle.Match). Of what they do not take, nothing is known, and Parse must be asked.
//
// All read a window of the frame's memory that may reach beyond the frame's end, and use
// nothing there.

// Windows that Plain reads: from the Ethernet header to the end of a TCP header
// without options, rounded up.
const (
	Window4Bytes = 64
	Window6Bytes = 96
)

// Offsets of a plain packet's transport header from the start of its frame, in bytes.
const (
	Plain4Bytes = EthernetBytes + IPv4Bytes
	Plain6Bytes = EthernetBytes + IPv6Bytes
)

// plainTransport is what Plain must know of a transport; no branch depends on
// which it is, as TCP and UDP come mixed.
type plainTransport struct {
	tcp   uint32 // all ones for TCP
	least uint32 // bytes of header; more than there can be where it is neither TCP nor UDP
}

// tables are what Plain looks up.
type tables struct {
	transports [256]plainTransport // by protocol number
	// flags has, by a TCP header's flags byte, whether a segment may be plain (0) or must be
	// refused (1 << 31), and whether it does nothing but acknowledge and carry data (0) or more
	// (1).
	flags [256]uint32
}

var plainTables = makeTables()

func makeTables() (t tables) {
	for i := range t.transports {
		t.transports[i].least = 1<<31 - 1
	}
	t.transports[ProtoTCP] = plainTransport{tcp: 1<<32 - 1, least: TCPBytes}
	t.transports[ProtoUDP] = plainTransport{least: UDPBytes}
	for i := range t.flags {
		if validTCPFlags>>(i&judgedTCPFlags)&1 == 0 {
			t.flags[i] = 1 << 31
		} else if i&(TCPSYN|TCPFIN|TCPRST|TCPACK) != TCPACK {
			t.flags[i] = 1
		}
	}
	return t
}

// mayBePlain4 reports whether a frame is of IPv4 without a tag.
func mayBePlain4(w *[Window4Bytes]byte) bool {
	return binary.LittleEndian.Uint16(w[12:14]) == EtherTypeIPv4>>8
}

// Plain4 judges one IPv4 packet. It returns where the packet ends, in bytes from the frame's
// start, or 0 if it is not plain. special reports whether it is a TCP segment that opens or
// closes.
func Plain4(w *[Window4Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	end, verdict := judgeIP4(w, frameBytes)
	transport, more := judgeTransport(PlainTransport4(w), PlainProto4(w), end-Plain4Bytes)
	if !mayBePlain4(w) || !sum4(w) || int32(verdict|transport) < 0 {
		return 0, false
	}
	return end, more != 0
}

// Plain6 is Plain4 for IPv6.
func Plain6(w *[Window6Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	end, verdict := judgeIP6(w, frameBytes)
	transport, more := judgeTransport(PlainTransport6(w), PlainProto6(w), end-Plain6Bytes)
	if int32(verdict|transport) < 0 {
		return 0, false
	}
	return end, more != 0
}

// judgeIP4 judges the IP header in a frame of so many bytes, but for its checksum. It returns
// where the packet ends, in bytes from the frame's start, and a verdict whose sign bit is set if
// it is not plain. There are no branches in it: all of it together is cheaper than to end early.
func judgeIP4(w *[Window4Bytes]byte, frameBytes uint32) (end, verdict uint32) {
	// Each byte is loaded once: where two loads overlap, the compiler would assemble both from
	// single bytes.
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version and header length, DSCP, total length, ID
	y := binary.LittleEndian.Uint64(w[20:28]) // fragment, TTL, protocol, checksum, half of the source
	const kind = 0x45<<16 | EtherTypeIPv4>>8
	end = EthernetBytes + uint32(bits.ReverseBytes16(uint16(x>>32)))
	// All of these must be zero. Of the fragment's bits DF and the reserved one may be set.
	zero := uint32(w[0]&1) | (uint32(x)^kind)&0xffffff | uint32(y)&0xff3f
	return end, -zero | (uint32(uint8(y>>16)) - 2) | (frameBytes - end)
}

// sum4 reports whether the checksum of an IPv4 header without options is right.
func sum4(w *[Window4Bytes]byte) bool {
	x, y := binary.LittleEndian.Uint64(w[12:20]), binary.LittleEndian.Uint64(w[20:28])
	z := uint64(binary.LittleEndian.Uint32(w[28:32])) + uint64(binary.LittleEndian.Uint16(w[32:34]))
	// 2^16 and 2^32 are 1 modulo 65,535, in either byte order: the sum of the header's words is a
	// multiple of 0xffff if and only if that of its double words is. It is not 0.
	return (x>>16+y>>32+uint64(uint32(y))+z)%0xffff == 0
}

// judgeTransport judges what lies behind the IP header, so many bytes of it. The sign bit of the
// verdict is set if it is not plain. Of a plain packet, more is 1 for a TCP segment that opens or
// closes, and 0 for all else.
func judgeTransport(t *Transport, proto uint8, bytes uint32) (verdict, more uint32) {
	p := &plainTables.transports[proto]
	udp, tcp := uint32(binary.BigEndian.Uint16(t[4:6])), uint32(t[12]>>4)*4
	length := udp ^ (udp^tcp)&p.tcp
	more = plainTables.flags[t[13]] & p.tcp
	return (length - p.least) | (bytes - length) | more, more
}

// judgeIP6 is judgeIP4 for IPv6.
func judgeIP6(w *[Window6Bytes]byte, frameBytes uint32) (end, verdict uint32) {
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version, traffic class, flow label, payload length
	y := binary.LittleEndian.Uint16(w[20:22]) // protocol, hop limit
	const kind = 0x60<<16 | (EtherTypeIPv6&0xff)<<8 | EtherTypeIPv6>>8
	end = Plain6Bytes + uint32(bits.ReverseBytes16(uint16(x>>48)))
	zero := uint32(w[0]&1) | (uint32(x)^kind)&0xf0ffff
	return end, -zero | (uint32(y>>8) - 2) | (frameBytes - end)
}

// Transport is the start of a plain packet's TCP or UDP header, and maybe of what follows it.
type Transport = [24]byte

// PlainTransport4 and PlainTransport6 return that of a packet.
func PlainTransport4(w *[Window4Bytes]byte) *Transport { return (*Transport)(w[Plain4Bytes:]) }
func PlainTransport6(w *[Window6Bytes]byte) *Transport { return (*Transport)(w[Plain6Bytes:]) }

// PlainKey4 returns the key of a plain packet: source<<32 | destination, and the same of the ports
// << 16.
func PlainKey4(w *[Window4Bytes]byte) (addrs uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[26:34]), binary.BigEndian.Uint32(w[34:38])
}

// PlainProto4 returns its protocol.
func PlainProto4(w *[Window4Bytes]byte) uint8 { return w[23] }

// PlainKey6 returns source (a, b) and destination (c, d) of a plain IPv6 packet, big endian, and
// the ports as PlainKey4 does.
func PlainKey6(w *[Window6Bytes]byte) (a, b, c, d uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[22:30]), binary.BigEndian.Uint64(w[30:38]),
		binary.BigEndian.Uint64(w[38:46]), binary.BigEndian.Uint64(w[46:54]), binary.BigEndian.Uint32(w[54:58])
}

// PlainProto6 returns its protocol.
func PlainProto6(w *[Window6Bytes]byte) uint8 { return w[20] }
