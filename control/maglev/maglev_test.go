package maglev

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

var seed = [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.%d.%d.%d:8080/TCP", i>>16, i>>8&255, i&255)
	}
	return out
}

func TestSize(t *testing.T) {
	for i, s := range sizes {
		if !big.NewInt(int64(s)).ProbablyPrime(20) {
			t.Errorf("%d is not prime", s)
		}
		if i > 0 {
			if f := float64(s) / float64(sizes[i-1]); f < 3.9 || f > 4.2 {
				t.Errorf("%d is %.2f times the previous class", s, f)
			}
		}
	}
	for _, c := range []struct{ n, want int }{
		{0, 257}, {1, 257}, {2, 257}, {3, 1009}, {10, 1009}, {11, 4001}, {40, 4001}, {41, 16_001},
		{160, 16_001}, {161, 65_537}, {655, 65_537}, {656, 262_147}, {10_485, 1_048_583}, {MaxNames, 4_194_319},
	} {
		if got := Size(c.n); got != c.want {
			t.Errorf("Size(%d) = %d, want %d", c.n, got, c.want)
		}
	}
}

// TestGolden pins tables: gateways of different versions must have the same tables.
func TestGolden(t *testing.T) {
	got := fmt.Sprint(Table([]string{"10.0.0.1:80/TCP", "10.0.0.2:80/TCP", "[2001:db8::3]:53/UDP"}, nil, seed, 31))
	const want = "[1 0 1 2 0 2 1 2 0 0 1 1 2 0 2 2 0 2 0 1 1 1 0 0 2 0 1 2 2 1 0]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// slow is the paper's pseudocode without changes (figure in section 3.4).
func slow(names []string, size int) []uint16 {
	sorted := slices.Sorted(slices.Values(names))
	next := make([]uint64, len(sorted))
	table := make([]int, size)
	for i := range table {
		table[i] = -1
	}
	for n := 0; ; {
		for i, name := range sorted {
			o, s := draw(name, seed)
			offset, skip := scale(o, uint64(size)), scale(s, uint64(size-1))+1
			c := (offset + next[i]*skip) % uint64(size)
			for table[c] >= 0 {
				next[i]++
				c = (offset + next[i]*skip) % uint64(size)
			}
			table[c] = i
			next[i]++
			if n++; n == size {
				out := make([]uint16, size)
				for slot, i := range table {
					out[slot] = uint16(slices.Index(names, sorted[i]))
				}
				return out
			}
		}
	}
}

func TestTableEqualsThePaper(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 7, 10, 31} {
		in := names(n)
		r.Shuffle(n, func(i, j int) { in[i], in[j] = in[j], in[i] })
		for _, size := range []int{31, 257, 1009} {
			if got, want := Table(in, nil, seed, size), slow(in, size); !slices.Equal(got, want) {
				t.Errorf("%d names, %d slots:\ngot  %v\nwant %v", n, size, got, want)
			}
		}
	}
}

func TestOrderOfNamesDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	in := names(50)
	weights := make([]uint32, len(in))
	for i := range weights {
		weights[i] = r.Uint32N(5)
	}
	want := owners(in, Table(in, weights, seed, 4001))
	for range 20 {
		r.Shuffle(len(in), func(i, j int) {
			in[i], in[j] = in[j], in[i]
			weights[i], weights[j] = weights[j], weights[i]
		})
		if got := owners(in, Table(in, weights, seed, 4001)); !slices.Equal(got, want) {
			t.Fatal("another order of the same names gave another table")
		}
	}
}

func owners(names []string, table []uint16) []string {
	out := make([]string, len(table))
	for i, p := range table {
		out[i] = names[p]
	}
	return out
}

func shares(n int, table []uint16) []int {
	out := make([]int, n)
	for _, p := range table {
		out[p]++
	}
	return out
}

func TestSharesAndDisruption(t *testing.T) {
	for _, c := range []struct {
		n     int
		moves float64 // percentage of the slots of other names that move when one name is removed
	}{{10, 3.5}, {100, 2}, {600, 1}} {
		t.Run(fmt.Sprint(c.n), func(t *testing.T) {
			in := names(c.n)
			size := Size(c.n)
			table := Table(in, nil, seed, size)
			s := shares(c.n, table)
			if low, high := slices.Min(s), slices.Max(s); high-low > 1+size/c.n/50 ||
				float64(high)/float64(low) > 1.02 {
				t.Errorf("shares from %d to %d of %d slots", low, high, size)
			}
			gone := c.n / 2
			rest := slices.Delete(slices.Clone(in), gone, gone+1)
			after := owners(rest, Table(rest, nil, seed, size))
			moved := 0
			for slot, name := range owners(in, table) {
				if name != in[gone] && after[slot] != name {
					moved++
				}
			}
			percent := 100 * float64(moved) / float64(size)
			t.Logf("%d names, %d slots: shares %d to %d, %.2f%% moved without need", c.n, size, slices.Min(s),
				slices.Max(s), percent)
			if percent > c.moves {
				t.Errorf("%.2f%% of slots moved without need, want at most %.1f%%", percent, c.moves)
			}
		})
	}
}

func TestWeights(t *testing.T) {
	weights := []uint32{1, 2, 0, 5, math.MaxUint32}
	for _, w := range [][]uint32{weights[:4], weights, {0, 0}, {0, 7}} {
		in := names(len(w))
		table := Table(in, w, seed, 1009)
		sum, given := 0.0, shares(len(w), table)
		for _, x := range w {
			sum += float64(x)
		}
		if sum == 0 {
			if table != nil {
				t.Errorf("weights %v: a table without names", w)
			}
			continue
		}
		for i, x := range w {
			if want := 1009 * float64(x) / sum; math.Abs(float64(given[i])-want) > 2 {
				t.Errorf("weights %v: name %d has %d slots, want about %.0f", w, i, given[i], want)
			}
		}
	}
}

// TestFillByRoundIsFill: fillByRound and fill have the same result for all weights.
func TestFillByRoundIsFill(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	unevens := 0
	for range 500 {
		in := names(2 + r.IntN(40))
		weights := make([]uint32, len(in))
		for i := range weights {
			weights[i] = 1 + r.Uint32N([]uint32{1, 3, 100, 65_535}[r.IntN(4)])
		}
		turns := order(in, weights, seed, 1009)
		if uneven(turns) {
			unevens++
		}
		want, got := make([]uint16, 1009), make([]uint16, 1009)
		fill(want, slices.Clone(turns))
		fillByRound(got, turns)
		if !slices.Equal(got, want) {
			t.Fatalf("weights %v:\ngot  %v\nwant %v", weights, got, want)
		}
	}
	if unevens == 0 || unevens == 500 {
		t.Errorf("%d of 500 are uneven: the test does not cover both functions", unevens)
	}
}

func TestSeedMatters(t *testing.T) {
	in := names(10)
	a, b := Table(in, nil, seed, 1009), Table(in, nil, [2]uint64{1, 2}, 1009)
	same := 0
	for i := range a {
		if a[i] == b[i] {
			same++
		}
	}
	if same > 200 { // about a tenth is expected by chance
		t.Errorf("%d of 1009 slots are the same under another seed", same)
	}
}

func FuzzTable(f *testing.F) {
	f.Add(uint64(1), uint8(3), uint8(1))
	f.Add(uint64(7), uint8(200), uint8(0))
	f.Fuzz(func(t *testing.T, s uint64, n, weight uint8) {
		in := names(int(n))
		r := rand.New(rand.NewPCG(s, 1))
		weights := make([]uint32, n)
		total := uint64(0)
		for i := range weights {
			weights[i] = r.Uint32N(uint32(weight) + 1)
			total += uint64(weights[i])
		}
		table := Table(in, weights, [2]uint64{s, s}, 257)
		if (total > 0) != (len(table) == 257) {
			t.Fatalf("weights sum to %d, table has %d slots", total, len(table))
		}
		for _, p := range table {
			if weights[p] == 0 {
				t.Fatalf("name %d has weight zero and a slot", p)
			}
		}
	})
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10_000} {
		in := names(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Table(in, nil, seed, Size(n))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(Size(n)), "ns/slot")
		})
	}
}

// BenchmarkUneven measures the worst case of weights: one is much heavier than the others.
func BenchmarkUneven(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		in, weights := names(n), make([]uint32, n)
		for i := range weights {
			weights[i] = 1
		}
		weights[n/2] = 65_535
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Table(in, weights, seed, Size(n))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(Size(n)), "ns/slot")
		})
	}
}

func TestKey(t *testing.T) {
	if a, again := Key("a"), Key("a"); a == Key("b") || a != again {
		t.Error("the key must depend on the seed and on nothing else")
	}
	if want := [2]uint64{0x17a62b756a69ad69, 0x34a1753c3d535394}; Key("") != want {
		t.Errorf("key of the empty seed is %#x, want %#x", Key(""), want)
	}
}

func TestFingerprint(t *testing.T) {
	if a, b := Fingerprint("a"), Fingerprint("b"); a == b || len(a) != 8 {
		t.Errorf("fingerprints are %q and %q, want two of 8 digits", a, b)
	}
}
