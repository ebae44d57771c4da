package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/header"
)

// A plain packet's transport header, in bytes from the start of the frame.
const (
	plain4 = header.EthernetBytes + header.IPv4Bytes
	plain6 = header.EthernetBytes + header.IPv6Bytes

	protoBitUDP = 1 << 4 // of a protocol number: 17 has it, 6 has not
)

// TranslatePlain4 is DecrementTTL and Translate for a packet that header.Plain4 took. addrs are
// source<<32 | destination of the tuple it leaves with, ports its source<<16 | destination.
func TranslatePlain4(w *[header.Window4Bytes]byte, addrs uint64, ports uint32, d header.Delta) {
	udp := w[23] & protoBitUDP
	w[22]--
	sum := uint32(^binary.BigEndian.Uint16(w[24:26])) + uint32(d.IP) + uint32(ttlDelta)
	binary.BigEndian.PutUint16(w[24:26], ^fold32(sum))
	binary.BigEndian.PutUint64(w[26:34], addrs)
	// No branch on the protocol: TCP and UDP are mixed. TranslatePlain6 has the same lines; a
	// call costs a nanosecond.
	t := (*[20]byte)(w[plain4:])
	binary.BigEndian.PutUint32(t[0:4], ports)
	field := (*[2]byte)(t[tcpChecksumOffset-uint(udp>>4)*(tcpChecksumOffset-udpChecksumOffset):])
	old := binary.BigEndian.Uint16(field[:])
	l4 := ^fold32(uint32(^old) + uint32(d.L4))
	if l4 == 0 || old == 0 {
		l4 = plainZero(old, l4, udp)
	}
	binary.BigEndian.PutUint16(field[:], l4)
}

// TranslatePlain6 is TranslatePlain4 for IPv6: addrs are destination and source, as
// flowtable's Leaving6 has them.
func TranslatePlain6(w *[header.Window6Bytes]byte, addrs *[4]uint64, ports uint32, d header.Delta) {
	udp := w[20] & protoBitUDP
	w[21]--
	binary.BigEndian.PutUint64(w[22:30], addrs[2])
	binary.BigEndian.PutUint64(w[30:38], addrs[3])
	binary.BigEndian.PutUint64(w[38:46], addrs[0])
	binary.BigEndian.PutUint64(w[46:54], addrs[1])
	t := (*[20]byte)(w[plain6:])
	binary.BigEndian.PutUint32(t[0:4], ports)
	field := (*[2]byte)(t[tcpChecksumOffset-uint(udp>>4)*(tcpChecksumOffset-udpChecksumOffset):])
	old := binary.BigEndian.Uint16(field[:])
	sum := ^fold32(uint32(^old) + uint32(d.L4))
	if sum == 0 || old == 0 {
		sum = plainZero(old, sum, udp)
	}
	binary.BigEndian.PutUint16(field[:], sum)
}

// plainZero is translateUDP's rule about the two zeros; TCP has none.
func plainZero(old, sum uint16, udp uint8) uint16 {
	switch {
	case udp == 0:
		return sum
	case old == 0:
		return 0
	}
	return 0xffff
}

// fold32 reduces a sum of a few words to 16 bits, as repeated checksum.Add does.
func fold32(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s + s>>16)
}
