package compare

import (
	"context"
	"errors"

	"sluice.dev/sluice/bench/stateless"
)

// searchNoDrop finds the highest rate of which no more than LossBound is lost (RFC 2544,
// section 26.1). It begins a little above what arrived when more was offered: more than that
// cannot arrive. A rate of 0 means that there is none; it is missing if the search did not end, because
// losses did not depend on the rate alone.
func (s *stage) searchNoDrop(ctx context.Context, lab *stateless.Lab, most *stateless.Result) (found stateless.Throughput, err error) {
	const above, lowest = 1.1, 1000
	search := stateless.Search{
		Min: lowest, Max: max(lowest, above*most.Rate()), Loss: s.LossBound, Duration: s.Trial, Confirm: 2 * s.Trial,
		WarmUp: -1, // the flows are established
		Again:  1,  // one trial among others' work on the machine says little
		Trials: 30,
	}
	if s.LossBound == 0 {
		search.Loss = stateless.NoLoss
	}
	found, err = search.Run(ctx, lab)
	if errors.Is(err, stateless.ErrUndecided) {
		return stateless.Throughput{Rate: missing}, nil
	}
	return found, err
}
