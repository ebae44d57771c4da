package paired

import (
	"math"
	"slices"

	"sluice.dev/sluice/bench/results"
)

const (
	// Confidence is the least confidence of intervals.
	Confidence = 0.95
	// FewestPairs is the least number of samples for an interval: of 5 samples even the smallest
	// and the largest enclose the median with 93.75 % only.
	FewestPairs = 6
)

// MedianInterval is the narrowest pair of order statistics that encloses the median with at least
// the given confidence, 0 to 1; nil if there are too few samples. The package documentation has its
// source.
func MedianInterval(samples []float64, confidence float64) *results.Interval {
	n := len(samples)
	k, covers := 0, 0.0
	outside := 0.0 // P(B < next), B binomial of n and 1/2
	for next := 1; next <= (n+1)/2; next++ {
		outside += binomialHalf(n, next-1)
		if 1-2*outside < confidence {
			break
		}
		k, covers = next, 1-2*outside
	}
	if k == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	return &results.Interval{Low: sorted[k-1], High: sorted[n-k], Confidence: covers}
}

// binomialHalf is the probability of k successes of n at 1/2. It uses logarithms, because 2^-n
// underflows.
func binomialHalf(n, k int) float64 {
	lg := func(x int) float64 {
		v, _ := math.Lgamma(float64(x) + 1)
		return v
	}
	return math.Exp(lg(n) - lg(k) - lg(n-k) - float64(n)*math.Ln2)
}
