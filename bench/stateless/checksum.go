package stateless

import "encoding/binary"

// The Internet checksum (RFC 1071) adds 16-bit words in one's complement, that is
// modulo 2^16-1. Words of 32 bits may be added instead, for 2^16 is 1 there.

// sumBytes adds the words of b to sum. An odd last byte is padded with zero.
func sumBytes(sum uint64, b []byte) uint64 {
	for len(b) >= 8 {
		v := binary.BigEndian.Uint64(b)
		sum += v>>32 + v&0xffffffff
		b = b[8:]
	}
	for len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

// sum16 folds a sum to 16 bits.
func sum16(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff // at most 33 bits
	sum = sum>>16 + sum&0xffff     // at most 18
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

func checksum(sum uint64) uint16 { return ^sum16(sum) }
