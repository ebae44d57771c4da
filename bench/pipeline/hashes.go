package pipeline

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// Hashes that tables of other gateways use and that anyone can compute, so that an attacker can
// make colliding tuples. They cover addresses and ports of IPv4, in wire order.

// tuple4 is the input of the hashes.
type tuple4 struct {
	src, dst         uint32
	srcPort, dstPort uint16
}

func (t tuple4) wire() (b [12]byte) {
	binary.BigEndian.PutUint32(b[0:], t.src)
	binary.BigEndian.PutUint32(b[4:], t.dst)
	binary.BigEndian.PutUint16(b[8:], t.srcPort)
	binary.BigEndian.PutUint16(b[10:], t.dstPort)
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crcHash is CRC32C, the default of DPDK's rte_hash. Another order of the fields or another initial
// value gives other sets, made in the same way.
func crcHash(t tuple4) uint32 {
	b := t.wire()
	return crc32.Checksum(b[:], castagnoli)
}

// rssKey is the key in the examples of Microsoft's specification of receive side scaling
// ("Verifying the RSS hash calculation"), and the default key of many drivers.
var rssKey = [40]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
	0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01,
	0xfa,
}

// toeplitzHash is the hash of receive side scaling: for every set bit, it XORs the 32 bits of the
// key that begin at that bit.
func toeplitzHash(t tuple4) (h uint32) {
	for i, octet := range t.wire() {
		window := binary.BigEndian.Uint64(rssKey[i:])
		for bit := range 8 {
			if octet&(0x80>>bit) != 0 {
				h ^= uint32(window >> (32 - bit))
			}
		}
	}
	return h
}

// jenkinsHash is Bob Jenkins's lookup3 over three words (burtleburtle.net/bob/c/lookup3.c, public
// domain), like Linux' jhash_3words, with initial value zero.
func jenkinsHash(t tuple4) uint32 {
	const start = 0xdeadbeef + 3<<2
	return jenkinsFinal(t.src+start, t.dst+start, (uint32(t.srcPort)<<16|uint32(t.dstPort))+start)
}

func jenkinsFinal(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
