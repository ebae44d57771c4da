package crc32c

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recomputed is the oracle: the difference of two CRCs, each over the whole message.
func recomputed(message []byte, difference uint32) uint32 {
	before := crc32.Checksum(message, castagnoli)
	binary.LittleEndian.PutUint32(message, binary.LittleEndian.Uint32(message)^difference)
	return before ^ crc32.Checksum(message, castagnoli)
}

// Every length that an IP packet can have, with random messages and differences.
func TestDeltaEqualsRecomputation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	message := make([]byte, 65535)
	for i := range message {
		message[i] = byte(r.Uint32())
	}
	step := 1
	if testing.Short() {
		step = 61
	}
	for n := 4; n <= len(message); n += step {
		if n > 9216 {
			n += 37 // every length of a jumbo frame; greater lengths in steps that meet all remainders
		}
		m := message[:min(n, len(message))]
		d := r.Uint32()
		if got, want := Delta(d, uint16(len(m))), recomputed(m, d); got != want {
			t.Fatalf("%d bytes, difference %#08x: %#08x, want %#08x", len(m), d, got, want)
		}
	}
	for _, n := range []int{65532, 65533, 65534, 65535} {
		for _, d := range []uint32{0, 1, one, 0xffffffff, 0xffff, 0xffff0000} {
			if got, want := Delta(d, uint16(n)), recomputed(message[:n], d); got != want {
				t.Fatalf("%d bytes, difference %#08x: %#08x, want %#08x", n, d, got, want)
			}
		}
	}
}

// Reversing a change restores the CRC, and two changes add up.
func TestDeltaIsLinear(t *testing.T) {
	for _, n := range []uint16{4, 12, 28, 1480, 2047, 2048, 9000, 65535} {
		for i := range 32 {
			a, b := uint32(1)<<i, uint32(0x9e3779b9)>>i
			if got, want := Delta(a^b, n), Delta(a, n)^Delta(b, n); got != want {
				t.Errorf("%d bytes, %#x and %#x: %#x, want %#x", n, a, b, got, want)
			}
		}
	}
}

func TestMultiplyEqualsSlowMultiply(t *testing.T) {
	check := func(a, b uint32) {
		if got, want := multiply(a, b), slowMultiply(a, b); got != want {
			t.Fatalf("%#08x times %#08x: %#08x, want %#08x", a, b, got, want)
		}
	}
	for i := range 32 {
		for j := range 32 {
			check(1<<i, 1<<j)
			check(^uint32(0)<<i, ^uint32(0)>>j) // columns with the most bits
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		check(r.Uint32(), r.Uint32())
	}
}

func TestDeltaAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Delta(0x12345678, 9001) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var sizes = []int{32, 64, 128, 256, 512, 1480, 1481, 8980, 65515}

func BenchmarkDelta(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := uint32(0x12345678)
			for b.Loop() {
				d ^= Delta(d, uint16(n)) // one needs the other's result, as CRC and frame do
			}
		})
	}
}

// The alternative to Delta: hash/crc32, which uses CRC instructions, over the old and the new
// packet.
func BenchmarkRecomputeTwice(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			message := make([]byte, n)
			d := uint32(0x12345678)
			for b.Loop() {
				d ^= recomputed(message, d)
			}
		})
	}
}

// Another alternative: hash/crc32 over as many zeros, with a start value from the difference.
func BenchmarkZeros(b *testing.B) {
	zeros := make([]byte, 65535)
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := uint32(0x12345678)
			if Delta(d, uint16(n)) != ^crc32.Update(^d, castagnoli, zeros[:n]) {
				b.Fatal("does not compute the same")
			}
			for b.Loop() {
				d ^= ^crc32.Update(^d, castagnoli, zeros[:n])
			}
		})
	}
}
