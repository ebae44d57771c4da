package paired

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/bench/results"
)

// TestMedianInterval: ranks and confidences are sums of the binomial distribution in exact
// fractions (David and Nagaraja, section 7.1). Samples are a permutation of 1 to n, so a rank is a
// value.
func TestMedianInterval(t *testing.T) {
	for _, c := range []struct {
		n          int
		low, high  float64 // ranks; 0: no interval
		confidence float64
	}{
		{n: 0}, {n: 1}, {n: 5},
		{6, 1, 6, 0.96875},
		{8, 1, 8, 0.9921875},
		{9, 2, 8, 0.9609375},
		{10, 2, 9, 0.978515625},
		{12, 3, 10, 0.96142578125},
		{20, 6, 15, 0.95861},
		{30, 10, 21, 0.95723},
		{50, 18, 33, 0.9671609},
		{5000, 2431, 2570, 0.9506841}, // 2^-5000 underflows
	} {
		samples := make([]float64, c.n)
		for i := range samples {
			samples[i] = float64((i*7919)%c.n + 1)
		}
		got := MedianInterval(samples, Confidence)
		if got == nil || c.low == 0 {
			if got != nil || c.low != 0 {
				t.Errorf("n = %d: %+v, want %+v", c.n, got, c)
			}
			continue
		}
		if got.Low != c.low || got.High != c.high || math.Abs(got.Confidence-c.confidence) > 1e-5 {
			t.Errorf("n = %d: %+v, want %+v", c.n, *got, c)
		}
	}
}

// TestCoverage: with intermittent disturbances, most pairs have noise of tens of percents with
// heavy tails, only partly common to both, and the machine slows down meanwhile. The interval must
// still miss the true ratio in no more than 5 %, and the verdict must not call an equally fast
// build slower, nor accept one that is 10 % slower.
func TestCoverage(t *testing.T) {
	const trials = 4000
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, ratio := range []float64{1, Bound, 0.9} {
		for _, pairs := range []int{FewestPairs, 12, 20, 60} {
			missed, verdicts := 0, map[Verdict]int{}
			for range trials {
				p := &results.Point{Better: "higher", Samples: noisyPairs(rnd, pairs, ratio)}
				v := SetVerdict(p)
				verdicts[v]++
				if p.Interval.Low > ratio || p.Interval.High < ratio {
					missed++
				}
			}
			name := fmt.Sprintf("ratio %g, %d pairs: missed %d of %d, %v", ratio, pairs, missed, trials, verdicts)
			t.Log(name)
			// Three standard deviations of a share of 5 % are 1 %.
			if missed > trials*6/100 {
				t.Errorf("%s", name)
			}
			if ratio == 1 && verdicts[Slower] > trials/100 || ratio == 0.9 && verdicts[Unchanged]+
				verdicts[Faster] > trials/100 {
				t.Errorf("wrong verdicts: %s", name)
			}
			if ratio == 0.9 && pairs == 60 && verdicts[Slower] < trials*9/10 {
				t.Errorf("too weak: %s", name)
			}
		}
	}
}

// noisyPairs are ratios of pairs on a machine that others use.
func noisyPairs(rnd *rand.Rand, pairs int, ratio float64) (list []float64) {
	own := func() float64 {
		if rnd.Float64() < 0.1 { // a disturbance of one of the two
			return 1 - 0.5*rnd.Float64()
		}
		return math.Exp(0.03 * rnd.NormFloat64())
	}
	shared := 1.0
	for i := range pairs {
		if rnd.Float64() < 0.3 { // begins or ends
			shared = 0.5 + rnd.Float64()
		}
		drift := 1 - 0.2*float64(i)/float64(pairs)
		now, before := ratio*shared*drift*own(), shared*drift*own()
		list = append(list, now/before)
	}
	return list
}
