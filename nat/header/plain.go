package header

import (
	"encoding/binary"
	"math/bits"
)

// Most packets are plain: TCP or UDP in an untagged unicast frame, over IPv4 without options or
// IPv6 without extension headers, not fragmented, with a TTL of at least 2. For such a packet
// Plain4 and Plain6 make the same decision as Parse in a quarter of the time, and Inspect
// (inspect.go) does so for many packets, with one exception: they accept tuples that Parse rejects
// (martian, land, port 0). No packet with such a tuple matches a flow: Parse checked the client's
// tuple when the flow was made, and the reply's tuple before the flow reached a state in which a
// plain reply matches (flowtable.Handle.Match). A packet that they do not accept may be good or
// bad: call Parse for it.
//
// All these functions read a window of the frame's memory, which may extend beyond the frame's end,
// and do not use the bytes there.

// Sizes of the windows that these functions read: from the Ethernet header to the end of a TCP
// header without options, rounded up.
const (
	Window4Bytes = 64
	Window6Bytes = 96
)

// Offsets of a plain packet's transport header from the start of its frame, in bytes.
const (
	Plain4Bytes = EthernetBytes + IPv4Bytes
	Plain6Bytes = EthernetBytes + IPv6Bytes
)

// plainTransport has the properties of a transport that the checks use; no branch depends on the
// transport, because TCP and UDP are mixed.
type plainTransport struct {
	tcp   uint32 // all ones for TCP
	least uint32 // minimum bytes of header; for other protocols more than a packet can have
}

// tables has the lookup tables of the checks.
type tables struct {
	transports [256]plainTransport // by protocol number
	// flags, indexed by the flags byte of a TCP header, is 1<<31 if the segment must be rejected, 0
	// if it only acknowledges and carries data, and 1 for other plain segments.
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
		if validTCPFlags>>(i&checkedTCPFlags)&1 == 0 {
			t.flags[i] = 1 << 31
		} else if i&(TCPSYN|TCPFIN|TCPRST|TCPACK) != TCPACK {
			t.flags[i] = 1
		}
	}
	return t
}

// mayBePlain4 reports whether a frame is IPv4 without a VLAN tag.
func mayBePlain4(w *[Window4Bytes]byte) bool {
	return binary.LittleEndian.Uint16(w[12:14]) == EtherTypeIPv4>>8
}

// Plain4 checks one IPv4 packet. It returns the end of the packet, in bytes from the frame's start,
// or 0 if the packet is not plain. special reports whether it is a TCP segment that opens or closes
// a connection.
func Plain4(w *[Window4Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	end, verdict := checkIP4(w, frameBytes)
	transport, more := checkTransport(PlainTransport4(w), PlainProto4(w), end-Plain4Bytes)
	if !mayBePlain4(w) || !sum4(w) || int32(verdict|transport) < 0 {
		return 0, false
	}
	return end, more != 0
}

// Plain6 is Plain4 for IPv6.
func Plain6(w *[Window6Bytes]byte, frameBytes uint32) (end uint32, special bool) {
	end, verdict := checkIP6(w, frameBytes)
	transport, more := checkTransport(PlainTransport6(w), PlainProto6(w), end-Plain6Bytes)
	if int32(verdict|transport) < 0 {
		return 0, false
	}
	return end, more != 0
}

// checkIP4 checks the IP header in a frame of frameBytes bytes, without its checksum. It returns
// the end of the packet, in bytes from the frame's start, and a verdict whose sign bit is set if
// the packet is not plain. It has no branches: to compute everything is cheaper than to return
// early.
func checkIP4(w *[Window4Bytes]byte, frameBytes uint32) (end, verdict uint32) {
	// Each byte is loaded once: if two loads overlapped, the compiler would assemble both from
	// single bytes.
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version and header length, DSCP, total length, ID
	y := binary.LittleEndian.Uint64(w[20:28]) // fragment, TTL, protocol, checksum, half of the source
	const kind = 0x45<<16 | EtherTypeIPv4>>8
	end = EthernetBytes + uint32(bits.ReverseBytes16(uint16(x>>32)))
	// All of these must be zero. DF and the reserved bit of the fragment word may be set.
	zero := uint32(w[0]&1) | (uint32(x)^kind)&0xffffff | uint32(y)&0xff3f
	return end, -zero | (uint32(uint8(y>>16)) - 2) | (frameBytes - end)
}

// sum4 reports whether the checksum of an IPv4 header without options is right.
func sum4(w *[Window4Bytes]byte) bool {
	x, y := binary.LittleEndian.Uint64(w[12:20]), binary.LittleEndian.Uint64(w[20:28])
	z := uint64(binary.LittleEndian.Uint32(w[28:32])) + uint64(binary.LittleEndian.Uint16(w[32:34]))
	// 2^16 and 2^32 are 1 modulo 65,535, in either byte order: the sum of the header's words is a
	// multiple of 0xffff if and only if the sum of its double words is. The sum is not 0.
	return (x>>16+y>>32+uint64(uint32(y))+z)%0xffff == 0
}

// checkTransport checks the transport header of a packet with the given number of bytes after the
// IP header. The sign bit of the verdict is set if the packet is not plain. For a plain packet,
// more is 1 for a TCP segment that opens or closes a connection, and 0 otherwise.
func checkTransport(t *Transport, proto uint8, bytes uint32) (verdict, more uint32) {
	p := &plainTables.transports[proto]
	udp, tcp := uint32(binary.BigEndian.Uint16(t[4:6])), uint32(t[12]>>4)*4
	length := udp ^ (udp^tcp)&p.tcp
	more = plainTables.flags[t[13]] & p.tcp
	return (length - p.least) | (bytes - length) | more, more
}

// checkIP6 is checkIP4 for IPv6.
func checkIP6(w *[Window6Bytes]byte, frameBytes uint32) (end, verdict uint32) {
	x := binary.LittleEndian.Uint64(w[12:20]) // EtherType, version, traffic class, flow label, payload length
	y := binary.LittleEndian.Uint16(w[20:22]) // protocol, hop limit
	const kind = 0x60<<16 | (EtherTypeIPv6&0xff)<<8 | EtherTypeIPv6>>8
	end = Plain6Bytes + uint32(bits.ReverseBytes16(uint16(x>>48)))
	zero := uint32(w[0]&1) | (uint32(x)^kind)&0xf0ffff
	return end, -zero | (uint32(y>>8) - 2) | (frameBytes - end)
}

// Transport has a plain packet's TCP or UDP header at its start, and perhaps bytes that follow the
// header.
type Transport = [24]byte

// PlainTransport4 and PlainTransport6 return the Transport of a packet.
func PlainTransport4(w *[Window4Bytes]byte) *Transport { return (*Transport)(w[Plain4Bytes:]) }
func PlainTransport6(w *[Window6Bytes]byte) *Transport { return (*Transport)(w[Plain6Bytes:]) }

// PlainKey4 returns the key of a plain packet: source<<32 | destination, and source port<<16 |
// destination port.
func PlainKey4(w *[Window4Bytes]byte) (addrs uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[26:34]), binary.BigEndian.Uint32(w[34:38])
}

// PlainProto4 returns the protocol of a plain IPv4 packet.
func PlainProto4(w *[Window4Bytes]byte) uint8 { return w[23] }

// PlainKey6 returns source (a, b) and destination (c, d) of a plain IPv6 packet, big endian, and
// the ports as PlainKey4 does.
func PlainKey6(w *[Window6Bytes]byte) (a, b, c, d uint64, ports uint32) {
	return binary.BigEndian.Uint64(w[22:30]), binary.BigEndian.Uint64(w[30:38]),
		binary.BigEndian.Uint64(w[38:46]), binary.BigEndian.Uint64(w[46:54]), binary.BigEndian.Uint32(w[54:58])
}

// PlainProto6 returns the protocol of a plain IPv6 packet.
func PlainProto6(w *[Window6Bytes]byte) uint8 { return w[20] }
