package checksum

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// slowSum adds one word at a time, as in RFC 1071 section 1.
func slowSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		s += word
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
	}
	return uint16(s)
}

func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestSumAgreesWithRFC1071(t *testing.T) {
	if got := Sum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != 0xddf2 {
		t.Errorf("the example of RFC 1071 section 3: %#04x, want 0xddf2", got)
	}
	r := random(t)
	for n := range 300 {
		for range 20 {
			b := make([]byte, n)
			fill(r, b)
			if got, want := Sum(b), slowSum(b); got != want {
				t.Fatalf("%d bytes %x: sum %#04x, want %#04x", n, b, got, want)
			}
		}
	}
}

// fill makes bytes whose sums often carry: mostly zeros and ones.
func fill(r *rand.Rand, b []byte) {
	for i := range b {
		switch r.IntN(4) {
		case 0:
			b[i] = 0xff
		case 1:
			b[i] = 0
		default:
			b[i] = byte(r.Uint32())
		}
	}
}

// Ten million edits of one word: the updated checksum equals the recomputed one, and a wrong
// checksum stays wrong by the same difference.
func TestUpdateAgreesWithRecomputation(t *testing.T) {
	r := random(t)
	b := make([]byte, 40)
	fill(r, b)
	b[0] = 0x45 // a header is never all zeros
	edits := 10_000_000
	if testing.Short() {
		edits /= 10
	}
	right := ^Sum(b)
	wrong := Update(right, 0x1234)
	for range edits {
		v := r.Uint64()
		at := 2 + int(v>>32)%((len(b)-2)/2)*2
		next := uint16(v)
		if v&(3<<16) == 0 {
			next = uint16(int16(v) >> 15) // all zeros or all ones
		}
		delta := Delta(uint16(b[at])<<8|uint16(b[at+1]), next)
		b[at], b[at+1] = byte(next>>8), byte(next)
		right, wrong = Update(right, delta), Update(wrong, delta)
		if want := ^Sum(b); right != want {
			t.Fatalf("updated %#04x, recomputed %#04x of %x", right, want, b)
		}
		if diff := Add(^wrong, right); diff%0xffff != 0x1234 {
			t.Fatalf("a wrong checksum changed its difference: off by %#04x", diff)
		}
	}
}

func TestFoldKeepsTheResidue(t *testing.T) {
	r := random(t)
	for range 100_000 {
		v := r.Uint64() >> (r.Uint32() % 64)
		got := Fold(v)
		if uint64(got)%0xffff != v%0xffff || (got == 0) != (v == 0) {
			t.Fatalf("Fold(%#x) = %#04x", v, got)
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{20, 60, 576, 1500} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			buf := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum(buf)
			}
		})
	}
}
