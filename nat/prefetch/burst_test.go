package prefetch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkBurst measures the cost of a load long after its line was prefetched, by the number of
// lines prefetched in a row, across 64 MiB: the processor drops some prefetches of too long a
// burst. With pages=known another line of each page was loaded before, so that prefetches do not
// wait for the translation of addresses.
func BenchmarkBurst(b *testing.B) {
	const line, lines, otherLine = 64, 1 << 20, 2048
	memory := make([]byte, line*lines)
	for i := range memory {
		memory[i] = byte(i % line) // every page is present; each line begins with 0
	}
	for _, pages := range []string{"any", "known"} {
		for _, burst := range []int{0, 8, 16, 24, 32, 48, 64} {
			b.Run(fmt.Sprintf("pages=%s/lines=%d", pages, burst), func(b *testing.B) {
				random, at := rand.New(rand.NewPCG(1, uint64(burst))), make([]int, burst)
				if burst == 0 {
					at = make([]int, 16) // the cost of a load without a prefetch
				}
				var spent time.Duration
				for b.Loop() {
					var sum byte
					for i := range at {
						if at[i] = random.IntN(lines) * line; pages == "known" {
							sum |= memory[at[i]^otherLine]
						}
					}
					for i := range burst {
						Read(&memory[at[i]+int(sum)]) // after the pages were loaded, for pages=known
					}
					for start := time.Now(); time.Since(start) < 2*time.Microsecond; {
					}
					start, last := time.Now(), int(sum)
					for i := range at {
						last = int(memory[at[i]+last]) // each load waits for the previous one
					}
					spent += time.Since(start)
					if last != 0 {
						b.Fatal("a line does not begin with 0")
					}
				}
				b.ReportMetric(float64(spent)/float64(b.N*len(at)), "ns/load")
			})
		}
	}
}
