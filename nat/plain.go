package nat

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

const protoBitUDP = 1 << 4 // of a protocol number: 17 has it, 6 has not

// RewritePlain4 does to the IP header of a packet that header.Plain4 took what DecrementTTL and Translate do. addrs are
// source<<32 | destination of the tuple it leaves with. The compiler inlines it, and what follows.
func RewritePlain4(w *[header.Window4Bytes]byte, addrs uint64, delta uint16) {
	w[22]--
	sum := uint32(^binary.BigEndian.Uint16(w[24:26])) + uint32(delta) + uint32(ttlDelta)
	binary.BigEndian.PutUint16(w[24:26], ^fold32(sum))
	binary.BigEndian.PutUint64(w[26:34], addrs)
}

// RewritePlain6 is RewritePlain4 for IPv6: addrs are destination and source, as flowtable's Leaving6 has them.
func RewritePlain6(w *[header.Window6Bytes]byte, addrs *[4]uint64) {
	w[21]--
	binary.BigEndian.PutUint64(w[22:30], addrs[2])
	binary.BigEndian.PutUint64(w[30:38], addrs[3])
	binary.BigEndian.PutUint64(w[38:46], addrs[0])
	binary.BigEndian.PutUint64(w[46:54], addrs[1])
}

// RewritePorts writes source<<16 | destination.
func RewritePorts(t *header.Transport, ports uint32) { binary.BigEndian.PutUint32(t[0:4], ports) }

// ChecksumField returns where the checksum is, for TCP's number or UDP's. No branch depends on which, as they come mixed.
func ChecksumField(t *header.Transport, proto uint8) *[2]byte {
	udp := uint32(proto) & protoBitUDP
	return (*[2]byte)(t[tcpChecksumOffset-(udp>>1|udp>>3):]) // 8 and 2 less
}

// UpdateField does to it what Translate does. Ones-complement sums do not mind the byte order (RFC 1071 section 2).
func UpdateField(field *[2]byte, delta uint16, proto uint8) {
	old := binary.LittleEndian.Uint16(field[:])
	sum := uint32(^old) + uint32(bits.ReverseBytes16(delta))
	updated := ^uint16(sum + sum>>16) // of two words: there is one carry
	if updated == 0 || old == 0 {
		updated = plainZero(old, updated, proto)
	}
	binary.LittleEndian.PutUint16(field[:], updated)
}

// TranslatePlain4 is DecrementTTL and Translate for a packet that header.Plain4 took.
func TranslatePlain4(w *[header.Window4Bytes]byte, addrs uint64, ports uint32, d header.Delta) {
	t, proto := header.PlainTransport4(w), header.PlainProto4(w)
	RewritePlain4(w, addrs, d.IP)
	RewritePorts(t, ports)
	UpdateField(ChecksumField(t, proto), d.L4, proto)
}

// TranslatePlain6 is TranslatePlain4 for IPv6.
func TranslatePlain6(w *[header.Window6Bytes]byte, addrs *[4]uint64, ports uint32, d header.Delta) {
	t, proto := header.PlainTransport6(w), header.PlainProto6(w)
	RewritePlain6(w, addrs)
	RewritePorts(t, ports)
	UpdateField(ChecksumField(t, proto), d.L4, proto)
}

// plainZero is translateUDP's rule about the two zeros; TCP has none.
func plainZero(old, sum uint16, proto uint8) uint16 {
	switch {
	case proto&protoBitUDP == 0:
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
