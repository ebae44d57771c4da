package paired

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// Before is the name of the older build's system in results.
const Before = "sluice-before"

// Bound is the least share of the older build's speed that counts as unchanged.
const Bound = 0.97

// Verdict is the result of comparing an interval with the bound.
type Verdict string

// The verdicts. Their words appear in tables and results.
const (
	TooFew    Verdict = "too few repetitions to say"
	Slower    Verdict = "slower by more than 3 %"
	Unchanged Verdict = "unchanged within 3 %"
	Faster    Verdict = "faster by more than 3 %"
)

// VerdictOf returns the verdict of a point of ratios now/before by its interval.
func VerdictOf(p *results.Point) Verdict {
	i := p.Interval
	if i == nil {
		return TooFew
	}
	slowest, fastest := i.Low, i.High
	if p.Better == "lower" {
		slowest, fastest = 1/i.High, 1/i.Low
	}
	switch {
	case fastest < Bound:
		return Slower
	case slowest < Bound*Bound:
		return TooFew
	case slowest > 1/Bound:
		return Faster
	}
	return Unchanged
}

// SetVerdict completes a point whose samples are ratios now/before, one per pair: the interval of
// their median, the bound as its target, and the verdict as a remark. A point with too few samples
// gets no target.
func SetVerdict(p *results.Point) Verdict {
	p.Interval = MedianInterval(p.Samples, Confidence)
	v := VerdictOf(p)
	why := ""
	switch {
	case v == TooFew && p.Interval == nil:
		why = fmt.Sprintf(": %d, and at least %d have an interval of %.0f %%", len(p.Samples), FewestPairs,
			100*Confidence)
	case v == TooFew:
		why = fmt.Sprintf(": the interval reaches %.1f %% slower", 100*slowdown(p))
	}
	if v != TooFew {
		bound := Bound
		if p.Better == "lower" {
			bound = 1 / Bound
		}
		p.Target = &bound
	}
	p.Remark = strings.TrimPrefix(p.Remark+"; "+string(v)+why, "; ")
	return v
}

// slowdown is the loss of speed at the worse end of the interval, as a share of the speed before.
func slowdown(p *results.Point) float64 {
	if p.Better == "lower" {
		return 1 - 1/p.Interval.High
	}
	return 1 - p.Interval.Low
}
