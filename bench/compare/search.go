package compare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bed/stateless"
)

// searchNoDrop finds the highest rate at which at most LossBound is lost (RFC 2544, section 26.1).
// It begins a little above the rate that arrived in the trial without a limit, which is the most
// that can arrive. A rate of 0 means that every rate loses more; the sample is missing if the
// search did not converge, because losses did not depend on the rate alone.
func (s *stage) searchNoDrop(
	ctx context.Context, x *subject, lab *stateless.Lab, most *stateless.Result,
) (found stateless.Throughput, err error) {
	const above, lowest = 1.1, 1000
	search := stateless.Search{
		Min: lowest, Max: max(lowest, above*most.Rate()), Loss: s.LossBound, Duration: s.Trial, Confirm: 2 * s.Trial,
		WarmUp: -1, // the flows are established
		Of:     3,  // trials per rate: other processes may disturb a single one
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

// witness is a generator that prints for each trial how many packets were lost, and where.
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
