package compare

import (
	"context"

	"sluice.dev/sluice/bench/stateless"
)

// searchSteps halve the interval: a 128th of the highest rate is left.
const searchSteps = 7

// searchNoDrop finds the highest rate of which no more than LossBound is lost, by
// halving (RFC 2544, section 26.1, with a bound that is not 0 because a veth's own ring
// loses). It begins at what arrived when more was offered: more than that cannot arrive.
func (s *stage) searchNoDrop(ctx context.Context, lab *stateless.Lab, most *stateless.Result) (rate float64, err error) {
	good, bad := 0.0, most.Rate()*1.25
	for range searchSteps {
		rate := (good + bad) / 2
		r, err := lab.Trial(ctx, stateless.Load{Rate: rate, Duration: s.Trial})
		if err != nil {
			return 0, err
		}
		// A sender that could not keep up has not shown that the rate is one.
		if r.Loss() <= s.LossBound && r.Sent.Rate() >= 0.98*rate {
			good = rate
		} else {
			bad = rate
		}
	}
	return good, nil
}
