package workers

import (
	"slices"
	"testing"

	"sluice.dev/sluice/fastpath/stats"
)

// TestStalled: lists workers whose last pass is long ago, and workers that never had one.
func TestStalled(t *testing.T) {
	const second = uint64(1e9)
	g := &Group{startedAt: 100 * second}
	for _, tick := range []uint64{0, 108 * second, 101 * second} {
		w := &worker{block: new(stats.Block)}
		w.block.LoopTick.Store(tick)
		g.workers = append(g.workers, w)
	}
	for _, c := range []struct {
		at   uint64
		want []int
	}{{100, nil}, {105, nil}, {106, []int{0}}, {109, []int{0, 2}}, {114, []int{0, 1, 2}}} {
		if got := g.Stalled(c.at * second); !slices.Equal(got, c.want) {
			t.Errorf("at %d s: %v, want %v", c.at, got, c.want)
		}
	}
}
