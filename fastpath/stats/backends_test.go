package stats

import (
	"math/rand/v2"
	"testing"
)

// TestCounters: whatever is counted and however it is published, in the end the Counters have it all, and
// before that never more.
func TestCounters(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var c Counters
	const backends = 5000
	c.Ensure(backends)
	type sums struct{ packets, bytes [2]uint64 }
	want := make([]sums, backends)
	c.Count(0, 0, 7) // ref 0 is no backend
	c.Count(MaxBackends-1, 0, 7)
	for n := range 300_000 {
		index, way := uint32(r.IntN(backends)), r.IntN(2)
		if n%3 == 0 {
			index = 77
		}
		bytes := uint32(r.IntN(1 << 17)) // so that 77 comes to more than 32 bits
		want[index].packets[way]++
		want[index].bytes[way] += uint64(bytes)
		c.Count(1<<20|index, uint8(way), bytes)
		if n%100_000 == 99_999 {
			limit := 100 + r.IntN(1000)
			if got := c.Publish(limit); got != limit {
				t.Fatalf("published %d of a limit of %d", got, limit)
			}
		}
		if a := c.At(index); a.ToBackend.Load() > want[index].packets[0] || a.ToClientBytes.Load() > want[index].bytes[1] {
			t.Fatalf("backend %d: more was published than counted", index)
		}
	}
	if n := c.Publish(MaxBackends); n == 0 || n > backends {
		t.Fatalf("published %d", n)
	}
	if n := c.Publish(MaxBackends); n != 0 {
		t.Fatalf("published %d twice", n)
	}
	for i := range want {
		a := c.At(uint32(i))
		got := sums{[2]uint64{a.ToBackend.Load(), a.ToClient.Load()}, [2]uint64{a.ToBackendBytes.Load(), a.ToClientBytes.Load()}}
		if got != want[i] {
			t.Fatalf("backend %d: %+v, want %+v", i, got, want[i])
		}
	}
	if c.At(MaxBackends-1) != nil {
		t.Error("a page that nobody ensured")
	}
}
