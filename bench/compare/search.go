package compare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bed/stateless"
)

// searchNoDrop finds the highest rate of which no more than LossBound is lost (RFC 2544, section
// 26.1). It begins a little above what arrived when more was offered: more than that cannot arrive.
// A rate of 0 means that there is none; it is missing if the search did not end, because losses did
// not depend on the rate alone.
func (s *stage) searchNoDrop(
	ctx context.Context, x *subject, lab *stateless.Lab, most *stateless.Result,
) (found stateless.Throughput, err error) {
	const above, lowest = 1.1, 1000
	search := stateless.Search{
		Min: lowest, Max: max(lowest, above*most.Rate()), Loss: s.LossBound, Duration: s.Trial, Confirm: 2 * s.Trial,
		WarmUp: -1, // the flows are established
		Of:     3,  // one trial among others' work on the machine says little
		Trials: 60,
	}
	if s.LossBound == 0 {
		search.Loss = stateless.NoLoss
	}
	var trial stateless.Trial = lab
	if s.Trials {
		trial = &witness{lab, s, x}
	}
	found, err = search.Run(ctx, trial)
	if errors.Is(err, stateless.ErrUndecided) {
		return stateless.Throughput{Rate: missing}, nil
	}
	return found, err
}

// witness is a generator that says of each trial what was lost, and where.
type witness struct {
	*stateless.Lab
	stage   *stage
	subject *subject
}

// Offer implements stateless.Trial.
func (w *witness) Offer(ctx context.Context, rate float64, d time.Duration) (o stateless.Outcome, err error) {
	x := w.subject
	r, _, lost, err := x.trial(ctx, w.Lab, stateless.Load{Rate: rate, Duration: d})
	if err != nil {
		return o, err
	}
	const million = 1e6
	fmt.Fprintf(w.stage.Out, "%s: %.3f Mpps of %.3f sent for %v, %d packets of %d lost, %.3f %%: %v; %v\n", x.kind.name,
		r.Sent.Rate()/million, rate/million, d, r.Lost(), r.Sent.Packets, 100*r.Loss(), lost, losses(r.Drops))
	return r.Outcome(), nil
}
