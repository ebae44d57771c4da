package flowtable

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

// HashKey keys the table's hash. Zero means a random key.
type HashKey [6]uint64

func randomKey() (k HashKey) {
	var b [len(k) * 8]byte
	rand.Read(b[:]) // never fails: crypto/rand documents that it crashes instead
	for i := range k {
		k[i] = binary.LittleEndian.Uint64(b[i*8:])
	}
	return k
}

// RandomHashKey returns a random key, for the Words of another table.
func RandomHashKey() HashKey { return randomKey() }

// Words returns the keyed hash of three words. Collisions are as hard to find as for hash6.
func (s *HashKey) Words(a, b, c uint64) uint64 { return s.hash6(a, b, c, 0, 0, 0) }

// key is a tuple in the form that the table compares. IPv4 uses only addr[0].
type key struct {
	addr  [4]uint64
	ports uint32
	proto uint8
}

func (k *key) from(t *header.Tuple) {
	k.ports = uint32(t.SrcPort)<<16 | uint32(t.DstPort)
	k.proto = t.Proto
	if !t.V6 {
		k.addr[0] = uint64(binary.BigEndian.Uint32(t.Src[12:]))<<32 | uint64(binary.BigEndian.Uint32(t.Dst[12:]))
		return
	}
	k.addr[0] = binary.BigEndian.Uint64(t.Src[:8])
	k.addr[1] = binary.BigEndian.Uint64(t.Src[8:])
	k.addr[2] = binary.BigEndian.Uint64(t.Dst[:8])
	k.addr[3] = binary.BigEndian.Uint64(t.Dst[8:])
}

// hash4 and hash6 multiply the key's words, masked with secrets, to 128 bits and keep all of them
// until the last fold. Without the secrets an attacker cannot build a set of tuples that collide.
// Probes of the table are bounded in any case.
func (s *HashKey) hash4(addr uint64, ports uint32, proto uint8) uint64 {
	hi, lo := bits.Mul64(addr^s[0], (uint64(ports)<<8|uint64(proto))^s[1])
	hi, lo = bits.Mul64(lo^s[2], hi^s[3])
	return hi ^ lo
}

func (s *HashKey) hash6(a, b, c, d uint64, ports uint32, proto uint8) uint64 {
	h1, l1 := bits.Mul64(a^s[0], b^s[1])
	h2, l2 := bits.Mul64(c^s[2], d^s[3])
	hi, lo := bits.Mul64(h1^l2^s[4], l1^h2^s[5]^(uint64(ports)<<8|uint64(proto)))
	hi, lo = bits.Mul64(lo^s[1], hi^s[0])
	return hi ^ lo
}

func (s *HashKey) hash(v6 bool, k *key) uint64 {
	if v6 {
		return s.hash6(k.addr[0], k.addr[1], k.addr[2], k.addr[3], k.ports, k.proto)
	}
	return s.hash4(k.addr[0], k.ports, k.proto)
}

// to sets t to the key's tuple; it is the inverse of from.
func (k *key) to(t *header.Tuple, v6 bool) {
	t.SrcPort, t.DstPort = uint16(k.ports>>16), uint16(k.ports)
	t.Proto, t.V6 = k.proto, v6
	if !v6 {
		t.Src, t.Dst = header.AddrFrom4([4]byte{}), header.AddrFrom4([4]byte{})
		binary.BigEndian.PutUint32(t.Src[12:], uint32(k.addr[0]>>32))
		binary.BigEndian.PutUint32(t.Dst[12:], uint32(k.addr[0]))
		return
	}
	binary.BigEndian.PutUint64(t.Src[:8], k.addr[0])
	binary.BigEndian.PutUint64(t.Src[8:], k.addr[1])
	binary.BigEndian.PutUint64(t.Dst[:8], k.addr[2])
	binary.BigEndian.PutUint64(t.Dst[8:], k.addr[3])
}
