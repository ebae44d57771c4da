package fragment

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

// sip is SipHash-2-4 (Aumasson and Bernstein, 2012), a keyed hash whose output reveals nothing
// about the key. Its input is whole words; the caller packs the last one, which has the length in
// its top byte.
type sip struct{ v0, v1, v2, v3 uint64 }

func newSip(key [2]uint64) sip {
	return sip{
		key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
		key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573,
	}
}

func (s *sip) round() {
	s.v0 += s.v1
	s.v2 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
	s.v3 = bits.RotateLeft64(s.v3, 16) ^ s.v2
	s.v0 = bits.RotateLeft64(s.v0, 32)
	s.v2 += s.v1
	s.v0 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 17) ^ s.v2
	s.v3 = bits.RotateLeft64(s.v3, 21) ^ s.v0
	s.v2 = bits.RotateLeft64(s.v2, 32)
}

func (s *sip) add(word uint64) {
	s.v3 ^= word
	s.round()
	s.round()
	s.v0 ^= word
}

func (s *sip) sum() uint64 {
	s.v2 ^= 0xff
	for range 4 {
		s.round()
	}
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

// datagramKey hashes the fields that identify a fragment's datagram: addresses, identification and,
// over IPv4, the protocol (RFC 791 section 3.2, RFC 8200 section 4.5). The addresses determine the
// family: no packet has a mapped IPv6 address.
func datagramKey(secret [2]uint64, p *header.Packet) uint64 {
	const inputBytes = 40
	proto := p.Tuple.Proto
	if p.Tuple.V6 {
		proto = 0
	}
	s := newSip(secret)
	s.add(binary.LittleEndian.Uint64(p.Tuple.Src[:8]))
	s.add(binary.LittleEndian.Uint64(p.Tuple.Src[8:]))
	s.add(binary.LittleEndian.Uint64(p.Tuple.Dst[:8]))
	s.add(binary.LittleEndian.Uint64(p.Tuple.Dst[8:]))
	s.add(uint64(p.FragmentID) | uint64(proto)<<32)
	s.add(inputBytes << 56)
	return s.sum()
}

// sourcePrefix hashes the network that a packet comes from: 24 bits of an IPv4 address, 56 of an
// IPv6 address, because a site has at least a /56 (RFC 6177).
func sourcePrefix(secret [2]uint64, p *header.Packet) uint64 {
	const v4Bits, v6Bits, inputBytes = 24, 56, 9
	prefix, family := binary.BigEndian.Uint64(p.Tuple.Src[:8])>>(64-v6Bits), uint64(1)
	if !p.Tuple.V6 {
		a := p.Tuple.Src.As4()
		prefix, family = uint64(binary.BigEndian.Uint32(a[:])>>(32-v4Bits)), 0
	}
	s := newSip(secret)
	s.add(prefix)
	s.add(family | inputBytes<<56)
	return s.sum()
}

// permute32 maps 32 bits to 32 bits, one to one: a Feistel network of four rounds over two halves.
// Its inputs to the hash differ from permute's.
func permute32(secret [2]uint64, x uint32) uint32 {
	left, right := uint16(x>>16), uint16(x)
	for round := range uint64(4) {
		s := newSip(secret)
		s.add(uint64(right) | round<<16 | 1<<32 | 8<<56)
		left, right = right, left^uint16(s.sum())
	}
	return uint32(left)<<16 | uint32(right)
}

// permute maps 16 bits to 16 bits, one to one: a Feistel network of four rounds
// over two bytes.
func permute(secret [2]uint64, x uint16) uint16 {
	left, right := uint8(x>>8), uint8(x)
	for round := range uint64(4) {
		s := newSip(secret)
		s.add(uint64(right) | round<<8 | 8<<56)
		left, right = right, left^uint8(s.sum())
	}
	return uint16(left)<<8 | uint16(right)
}
