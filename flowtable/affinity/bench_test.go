package affinity

import (
	"fmt"
	"testing"
)

// BenchmarkAffinity measures the cost of affinity for a new flow: of a client with a pin, of one
// without, and of a client's first flow.
func BenchmarkAffinity(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 16, 1 << 20} {
		tb := testTable(b, n)
		for i := range n {
			tb.Confirm(bootTime, client(i), 7, backend(i%1000), 10800)
		}
		// An order that no prefetcher predicts.
		at := func(i int) int { return int(uint64(i) * 2654435761 % uint64(n)) }
		i := 0
		b.Run(fmt.Sprintf("clients=%d/hit", n), func(b *testing.B) {
			for b.Loop() {
				i++
				tb.Get(bootTime, client(at(i)), 7)
			}
		})
		b.Run(fmt.Sprintf("clients=%d/miss", n), func(b *testing.B) {
			for b.Loop() {
				i++
				tb.Get(bootTime, client(at(i)), 8)
			}
		})
		b.Run(fmt.Sprintf("clients=%d/prolong", n), func(b *testing.B) {
			now := bootTime
			for b.Loop() {
				i++
				now += second
				p := backend(at(i) % 1000)
				tb.Settle(now, client(at(i)), 7, p, p, 10800)
			}
		})
		b.Run(fmt.Sprintf("clients=%d/first", n), func(b *testing.B) {
			for b.Loop() {
				i++
				tb.Settle(bootTime, client(i), 9, backend(i%1000), Pin{}, 10800)
			}
		})
	}
}

// BenchmarkForget measures a Forget that matches no pin: the walk of a full table of the default
// size.
func BenchmarkForget(b *testing.B) {
	const n = 1 << 18
	tb := testTable(b, n)
	for i := range n {
		tb.Confirm(bootTime, client(i), 7, backend(i%1000), 10800)
	}
	b.ReportAllocs()
	for b.Loop() {
		tb.Forget(bootTime, func(service uint64, _ Pin) bool { return service == 8 })
	}
}
