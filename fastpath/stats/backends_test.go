package stats

import (
	"math/rand/v2"
	"testing"
)

// TestCounters: for any sequence of calls, the Counters have all packets at the end, and never more
// than were counted.
func TestCounters(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var c Counters
	const backends = 5000
	c.Ensure(backends)
	type sums struct{ packets, bytes [2]uint64 }
	want := make([]sums, backends)
	c.Count(0, 0, 7) // ref 0 is not counted
	c.Count(MaxBackends-1, 0, 7)
	c.Publish(1)
	for n := range 600_000 {
		if n%50_000 == 0 { // alternate between the log and direct sums
			c.Expect(r.IntN(2 * fewBackends))
		}
		index, way := uint32(r.IntN(backends)), r.IntN(2)
		if n%3 == 0 {
			index = 77
		}
		bytes := 1 + uint32(r.IntN(MaxBytes)) // backend 77's sum of bytes needs more than 32 bits
		want[index].packets[way]++
		want[index].bytes[way] += uint64(bytes)
		c.Count(1<<20|index, uint8(way), bytes)
		if n%200_000 == 199_999 {
			if c.Publish(100 + r.IntN(1000)) {
				t.Fatal("a round over thousands of backends is done at once")
			}
		}
		if a := c.At(index); a.ToBackend.Load() > want[index].packets[0] ||
			a.ToClientBytes.Load() > want[index].bytes[1] {
			t.Fatalf("backend %d: more was published than counted", index)
		}
	}
	// The current round, and another one for the pages that it has passed already.
	for rounds := 0; rounds < 2; {
		if c.Publish(64) {
			rounds++
		}
	}
	for i := range want {
		a := c.At(uint32(i))
		got := sums{[2]uint64{a.ToBackend.Load(), a.ToClient.Load()}, [2]uint64{a.ToBackendBytes.Load(),
			a.ToClientBytes.Load()}}
		if got != want[i] {
			t.Fatalf("backend %d: %+v, want %+v", i, got, want[i])
		}
	}
	if c.At(MaxBackends-1) != nil {
		t.Error("a page without Ensure has a counter")
	}
}

// TestFullSums: a sum whose highest bit is set is published at once, and no packet is lost.
func TestFullSums(t *testing.T) {
	for _, many := range []bool{false, true} {
		var c Counters
		c.Ensure(10)
		if many {
			c.Expect(2 * fewBackends)
		}
		const packets = 1<<23 + 5 // at 1<<23 the highest bit is set
		batch := make([]Entry, 1000)
		for i := range batch {
			batch[i] = MakeEntry(1<<20|9, 1, MaxBytes)
		}
		for left := packets; left > 0; left -= len(batch) {
			c.Add(batch[:min(left, len(batch))])
		}
		before := c.At(9).ToClient.Load()
		for !c.Publish(64) {
		}
		if a := c.At(9); a.ToClient.Load() != packets || a.ToClientBytes.Load() != packets*MaxBytes ||
			a.ToBackend.Load() != 0 || before < 1<<22 {
			t.Errorf("many %v: %d packets (%d before Publish) with %d bytes, want %d with %d", many, a.ToClient.Load(),
				before, a.ToClientBytes.Load(), packets, packets*MaxBytes)
		}
	}
}

// TestListsFillTogether: packets in a repeating order fill the lists of all pages at the same time.
// The lists are not all added up at once, and no packet is lost.
func TestListsFillTogether(t *testing.T) {
	const pages, backends = 20, 4 // of each page
	var c Counters
	c.Ensure(pages << counterPageBits)
	c.Expect(pages << counterPageBits)
	full := func() (n int) {
		for _, noted := range c.noted[:pages] {
			if noted == listSize {
				n++
			}
		}
		return n
	}
	most := 0
	const packets = 3 * listSize * pages
	for i := range packets {
		before := full()
		c.Count(1<<20|uint32(i%pages)<<counterPageBits|uint32(i/pages%backends), 0, 1)
		if c.logged == 0 {
			most = max(most, before-full())
		}
	}
	if most > sumsPerDistribution || most == 0 {
		t.Errorf("%d lists were added up at once, want 1 to %d", most, sumsPerDistribution)
	}
	for calls := 0; c.Pending(); calls++ {
		if calls > 2*pages*backends {
			t.Fatal("Pending is true after everything was published")
		}
		before := [2]uint64{published(&c, pages), notes(&c, pages)}
		c.Publish(16)
		if n := published(&c, pages) - before[0]; n > 16*3*listSize/backends {
			t.Fatalf("%d packets were published at once", n)
		}
		if n := before[1] - min(before[1], notes(&c, pages)); n > listSize {
			t.Fatalf("%d notes were added up at once", n)
		}
	}
	if n := published(&c, pages); n != packets {
		t.Errorf("%d of %d packets are counted", n, packets)
	}
}

func published(c *Counters, pages int) (n uint64) {
	for i := range uint32(pages << counterPageBits) {
		n += c.At(i).ToBackend.Load()
	}
	return n
}

func notes(c *Counters, pages int) (n uint64) {
	for _, noted := range c.noted[:pages] {
		n += uint64(noted)
	}
	return n
}
