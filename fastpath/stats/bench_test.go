package stats

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkCount counts packets of random backends.
func BenchmarkCount(b *testing.B) {
	for _, backends := range []int{64, 100_000} {
		b.Run(fmt.Sprintf("backends=%d", backends), func(b *testing.B) {
			c := new(Counters)
			c.Ensure(backends)
			c.Expect(backends)
			r := rand.New(rand.NewPCG(1, 2))
			refs := make([]uint32, 1<<16)
			for i := range refs {
				refs[i] = 1<<20 | uint32(r.IntN(backends))
			}
			i := 0
			for b.Loop() {
				c.Count(refs[i&(len(refs)-1)], uint8(i&1), 60)
				i++
			}
		})
	}
}
