package services

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

// SelectHash returns the hash that selects a new flow's slot in a Maglev table. It depends only on
// the client's and the frontend's address and port, the protocol and SelectKey: gateways that share
// the key choose the same slot. It is three rounds of wyhash's folded 64x64 multiplication.
//
// A client's flows to a frontend differ only in the source port, and a product of the port and a
// constant has equal distances: for some constants the ports of a client would meet few of the
// slots. So the halves of that product are multiplied once more.
//
// Both factors of each product must depend on the key. If a factor were an exclusive or with a
// constant, a client could make it zero, which cancels the other factor: the flows of all its
// networks would then have one hash.
func (s *Snapshot) SelectHash(t *header.Tuple) uint64 {
	a, b := s.SelectKey[0], s.SelectKey[1]
	ports := uint64(t.SrcPort)<<32 | uint64(t.DstPort)<<16 | uint64(t.Proto)
	h := fold(word(t.Src[:8])^a, word(t.Src[8:])^b^0x9e3779b97f4a7c15)
	h ^= fold(word(t.Dst[:8])^bits.RotateLeft64(b, 32), word(t.Dst[8:])^bits.RotateLeft64(a, 32)^0xd6e8feb86659fd93)
	hi, lo := bits.Mul64(h^ports^0xa0761d6478bd642f, h^a^0xe7037ed1a0b428db)
	return fold(lo^b^0x8ebc6af09c88c6e3, hi^a^0x589965cc75374cc3)
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// word is a function and not a variable: with a function variable the compiler would assume that
// the tuple escapes.
func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
