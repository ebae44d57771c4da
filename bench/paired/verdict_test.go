package paired

import (
	"math"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/results"
)

// spread returns n samples whose interval is from low to high: with six, the smallest and the
// largest.
func spread(low, high float64) []float64 {
	return []float64{low, (low + high) / 2, (low + high) / 2, (low + high) / 2, (low + high) / 2, high}
}

func TestSetVerdict(t *testing.T) {
	for _, c := range []struct {
		name       string
		samples    []float64 // of a rate
		want       Verdict
		remark     string
		heldAndMet bool
	}{
		{"no pair", nil, TooFew, "0, and at least 6", false},
		{"few pairs", []float64{1, 1, 1, 1, 1}, TooFew, "5, and at least 6", false},
		{"equal", spread(0.99, 1.01), Unchanged, "unchanged", true},
		{"includes the bound", spread(0.95, 0.971), Unchanged, "unchanged", true},
		{"all below the bound", spread(0.95, 0.969), Slower, "slower by more", false},
		{"twice as fast", spread(1.9, 2.1), Faster, "faster", true},
		{"a little faster", spread(1.001, 1.02), Unchanged, "unchanged", true},
		{"reaches twice the bound", spread(0.93, 1.05), TooFew, "reaches 7.0 % slower", false},
		{"says nothing", spread(0.5, 2), TooFew, "reaches 50.0 % slower", false},
		{"far below, and wide", spread(0.5, 0.9), Slower, "slower by more", false},
	} {
		// A cost is the inverse of a rate, and must have the same verdict.
		for _, better := range []string{"higher", "lower"} {
			p := &results.Point{Better: better, Unit: "ratio"}
			for _, s := range c.samples {
				if better == "lower" {
					s = 1 / s
				}
				p.Samples = append(p.Samples, s)
			}
			if got := SetVerdict(p); got != c.want || VerdictOf(p) != c.want {
				t.Errorf("%s, %s: %s, want %s", c.name, better, got, c.want)
			}
			if !strings.Contains(p.Remark, c.remark) {
				t.Errorf("%s, %s: remark %q, want %q", c.name, better, p.Remark, c.remark)
			}
			if held := p.Target != nil; held != (c.want != TooFew) || held && p.Met() != c.heldAndMet {
				t.Errorf("%s, %s: held %t, met %t", c.name, better, held, p.Met())
			}
		}
	}
}

// TestRemarkIsKept: an earlier remark on the figure is kept.
func TestRemarkIsKept(t *testing.T) {
	p := &results.Point{Better: "higher", Samples: spread(1, 1), Remark: "limited"}
	if SetVerdict(p); p.Remark != "limited; unchanged within 3 %" {
		t.Errorf("remark %q", p.Remark)
	}
}

func TestPrintAndFail(t *testing.T) {
	var rows []Row
	for what, samples := range map[string][]float64{
		"rate": spread(0.99, 1.01), "no-drop rate": spread(0.8, 0.9), "p99": {1},
	} {
		p := &results.Point{Better: "higher", Samples: samples}
		SetVerdict(p)
		rows = append(rows, Row{What: what, Before: "1 Mpps", Now: "2 Mpps", Ratio: p})
	}
	var out strings.Builder
	if err := Print(&out, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.990 to 1.010", "0.850", "verdict of 3 figures: 1 slower by more than 3 %; 1 too " +
		"few repetitions to say; 1 unchanged within 3 %\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if err := Fail(rows); err == nil || !strings.Contains(err.Error(), "before: no-drop rate (") {
		t.Errorf("%v", err)
	}
	if err := Fail(rows[:0]); err != nil {
		t.Error(err)
	}
}

func TestSlowdown(t *testing.T) {
	for better, i := range map[string]*results.Interval{"higher": {Low: 0.8, High: 1}, "lower": {Low: 1, High: 1.25}} {
		if got := slowdown(&results.Point{Better: better, Interval: i}); math.Abs(got-0.2) > 1e-9 {
			t.Errorf("%s: %g", better, got)
		}
	}
}
