package pipeline

import (
	"context"
	"math"
	"runtime/metrics"
	"slices"
	"time"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/fastpath/services"
)

// snapshotEvery is the time between two tables. Building one takes about 50 ms.
const snapshotEvery = 200 * time.Millisecond

// publishSnapshots publishes tables in each of which all Services are new.
func publishSnapshots(ctx context.Context, g *gate) error {
	table := maglev.Table(make([]string, g.w.backends), nil, [2]uint64{5, 6}, maglev.Size(g.w.backends))
	repeat(ctx, snapshotEvery, func() {
		b := services.NewBuilder(g.w.handle.Load())
		for i := range g.w.services {
			g.w.serveBy(b, i, g.w.backends, func([]string) []uint16 { return table })
		}
		g.w.handle.Store(b.Build())
	})
	return nil
}

// repeat calls f each period until ctx is done.
func repeat(ctx context.Context, period time.Duration, f func()) {
	every := time.NewTicker(period)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			f()
		}
	}
}

// routesEvery is the time between two changes of routes.
const routesEvery = 10 * time.Millisecond

// publishRoutes publishes views, each of which makes the worker bind every flow again.
func publishRoutes(ctx context.Context, g *gate) error {
	repeat(ctx, routesEvery, func() {
		view := *g.w.hops.View()
		view.Generation++
		g.w.hops.Publish(&view)
	})
	return nil
}

// tree is live memory for the collector to mark.
type tree struct{ left, right *tree }

func newTree(depth int) *tree {
	if depth == 0 {
		return new(tree)
	}
	return &tree{newTree(depth - 1), newTree(depth - 1)}
}

const (
	liveDepth    = 20 // 2 M nodes of 16 bytes
	garbageDepth = 14
)

// makeGarbage keeps the collector working: one collection follows the other.
func makeGarbage(ctx context.Context, _ *gate) error {
	live := newTree(liveDepth)
	for ctx.Err() == nil {
		live.left.left = newTree(garbageDepth)
	}
	return nil
}

// pauses is a histogram of the collector's stops of all goroutines (runtime/metrics).
type pauses metrics.Float64Histogram

func readPauses() pauses {
	list := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(list)
	h := list[0].Value.Float64Histogram()
	return pauses{Counts: slices.Clone(h.Counts), Buckets: h.Buckets}
}

// since returns the number of pauses from before to p, and an upper bound of the longest.
func (p *pauses) since(before *pauses) (count uint64, longest time.Duration) {
	for i, n := range p.Counts {
		if n -= before.Counts[i]; n == 0 {
			continue
		}
		count += n
		bound := p.Buckets[i+1]
		if math.IsInf(bound, 1) {
			bound = p.Buckets[i]
		}
		longest = time.Duration(bound * float64(time.Second))
	}
	return count, longest
}
