// Package crc32c updates the checksum of SCTP: CRC32c (RFC 9260 appendix A) over the whole packet,
// without a pseudo-header. So it covers the ports, but not the addresses.
//
// A CRC is the remainder of a polynomial over GF(2), where addition is exclusive or. So if two
// packets of equal length differ by d, their CRCs differ by the CRC of d alone, for any other
// content of the packets and any start value:
//
//	         |  ports  |  tag  | CRC 0 |  chunks ...  |
//	d        |  D      |  0 0 0 0 0 0 0 0 0 0 0 0 0 0 |      CRC' = CRC ^ D·x^(8n) mod P
//	           4 bytes   └─ n bytes from the first D ─┘
//
// The packet need not be read again, and a wrong CRC stays wrong by the same bits. The factor
// depends only on the length. It takes one multiplication by a table entry for packets of at most 2
// KiB, and two for longer ones.
//
// Numbers are in the order in which RFC 9260 sends them, least significant byte first: the bit
// 1<<31 is x^0, and 1<<0 is x^31.
package crc32c

const (
	// poly is Castagnoli's polynomial without x^32.
	poly = 0x82f63b78
	one  = 1 << 31

	wordBytes = 4
	lowBits   = 9 // words in the low table: 2 KiB of packet
	lowWords  = 1 << lowBits
	highWords = (1<<16 - 1) / wordBytes >> lowBits
)

// factors has the powers of x by which a difference is multiplied, according to the number of bytes
// that follow it. SCTP pads packets to words (RFC 9260 section 3.2), so bytes[0] is the usual one.
type factors struct {
	low   [lowWords]uint32      // x^(32·i)
	high  [highWords + 1]uint32 // x^(32·512·i)
	bytes [wordBytes]uint32     // x^(8·i)
}

// powers and steps are read-only after initialisation.
var (
	powers = makeFactors()
	steps  = makeSteps()
)

func makeFactors() (f factors) {
	f.bytes[0], f.low[0], f.high[0] = one, one, one
	for i := range f.bytes[1:] {
		f.bytes[i+1] = zeroByte(f.bytes[i])
	}
	word := zeroByte(f.bytes[wordBytes-1])
	for i := range f.low[1:] {
		f.low[i+1] = slowMultiply(f.low[i], word)
	}
	step := slowMultiply(f.low[lowWords-1], word)
	for i := range f.high[1:] {
		f.high[i+1] = slowMultiply(f.high[i], step)
	}
	return f
}

// makeSteps returns the product of x^32 and each value of each byte of a word.
func makeSteps() (t [wordBytes][256]uint32) {
	for i := range t {
		for v := range t[i] {
			w := uint32(v) << (8 * i)
			for range wordBytes {
				w = zeroByte(w)
			}
			t[i][v] = w
		}
	}
	return t
}

// zeroByte multiplies by x^8.
func zeroByte(a uint32) uint32 {
	for range 8 {
		a = a>>1 ^ poly&-(a&1)
	}
	return a
}

// slowMultiply returns a·b mod P, term by term. It is the oracle for multiply.
func slowMultiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
	}
	return product
}

// multiply returns a·b mod P. The upper 32 of the product's 63 bits are its terms below x^32; the
// lower ones are reduced a byte at a time.
func multiply(a, b uint32) uint32 {
	product := carryless(uint64(a), uint64(b)) << 1
	low := uint32(product)
	return uint32(product>>32) ^
		steps[0][low&255] ^ steps[1][low>>8&255] ^ steps[2][low>>16&255] ^ steps[3][low>>24]
}

// carryless multiplies two numbers of 32 bits without carries. The processor's multiplication has
// carries. But if only every fourth bit of the operands can be set, no column adds up more than
// eight bits, and the three empty columns above it absorb the carry.
func carryless(a, b uint64) uint64 {
	const m0, m1, m2, m3 = 0x1111111111111111, 0x2222222222222222, 0x4444444444444444, 0x8888888888888888
	a0, a1, a2, a3 := a&m0, a&m1, a&m2, a&m3
	b0, b1, b2, b3 := b&m0, b&m1, b&m2, b&m3
	return (a0*b0^a1*b3^a2*b2^a3*b1)&m0 |
		(a0*b1^a1*b0^a2*b3^a3*b2)&m1 |
		(a0*b2^a1*b1^a2*b0^a3*b3)&m2 |
		(a0*b3^a1*b2^a2*b1^a3*b0)&m3
}

// Delta returns the change of the CRC if four bytes of a message change by difference. Both are
// little-endian and combined by exclusive or. bytes is the length of the message from the first of
// the four bytes on, at most 65,535.
func Delta(difference uint32, bytes uint16) uint32 {
	if difference == 0 {
		return 0
	}
	words := bytes / wordBytes
	d := multiply(difference, powers.low[words%lowWords])
	if high := words / lowWords; high != 0 {
		d = multiply(d, powers.high[high])
	}
	if rest := bytes % wordBytes; rest != 0 {
		d = multiply(d, powers.bytes[rest])
	}
	return d
}
