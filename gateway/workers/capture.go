package workers

import (
	"context"
	"errors"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/capture"
)

// DropSamples returns the samples of packets that the workers dropped, by worker.
func (g *Group) DropSamples() (rings []*capture.Ring) {
	for _, w := range g.workers {
		rings = append(rings, w.DropSamples())
	}
	return rings
}

// tapTimeout is how long a worker may take to begin or end a capture, between two steps.
const tapTimeout = time.Second

// SetTaps replaces the captures of all workers (fastpath.Worker.NewTaps). It returns an error if a
// worker does not step; that worker does it when it steps again.
func (g *Group) SetTaps(ctx context.Context, list []*capture.Tap) error {
	some := slices.ContainsFunc(list, func(t *capture.Tap) bool { return t != nil })
	var errs []error
	for id, w := range g.workers {
		var taps *fastpath.Taps
		if some {
			taps = w.NewTaps(list)
		}
		set := func(w *fastpath.Worker) { w.SetTaps(taps) }
		within, cancel := context.WithTimeout(ctx, tapTimeout)
		if err := g.Do(within, id, set); err != nil {
			errs = append(errs, err)
			w.Tell(set)
		}
		cancel()
	}
	return errors.Join(errs...)
}
