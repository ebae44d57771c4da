// Package checksum is the ones-complement arithmetic of the Internet checksum.
//
// A checksum is the complement of the sum of all 16-bit words it covers (RFC 1071). In this
// arithmetic the complement is the negative. So the sum over a changed packet is the old sum minus
// the old words plus the new ones, and the packet need not be read again (RFC 1624 equation 3):
//
//	HC' = ^(^HC + ^m + m')
//	             └── delta ──┘
//
// Zero has two forms, 0x0000 and 0xffff. Addition yields 0x0000 only from 0x0000 and 0x0000. So a
// checksum over at least one nonzero word, as in every header with a version or a protocol number,
// keeps the form that a full computation would give it. A wrong checksum stays wrong by the same
// difference.
package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Add adds two ones-complement sums.
func Add(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s + s>>16)
}

// Delta returns what replacing the word old by the word new adds to a sum.
func Delta(old, new uint16) uint16 { return Add(^old, new) }

// Update returns the checksum of a packet whose sum changed by delta.
func Update(checksum, delta uint16) uint16 { return ^Add(^checksum, delta) }

// Sum adds the 16-bit words of b, in network order; an odd last byte counts as
// the high half of a word whose low half is zero.
func Sum(b []byte) uint16 {
	var s, carry uint64
	for ; len(b) >= 32; b = b[32:] {
		w := (*[32]byte)(b)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(w[0:8]), 0)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(w[8:16]), carry)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(w[16:24]), carry)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(w[24:32]), carry)
		s += carry
	}
	for ; len(b) >= 8; b = b[8:] {
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s += carry
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(last[:]), 0)
		s += carry
	}
	return Fold(s)
}

// Fold reduces a sum of 16-, 32- or 64-bit words to 16 bits: 2^16, 2^32 and
// 2^48 are all 1 modulo 65,535.
func Fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	w := uint32(s)>>16 + uint32(s)&0xffff
	return uint16(w + w>>16)
}
