package stateless

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// fake is a system that forwards up to capacity and loses what is above it.
type fake struct {
	capacity, sender float64 // packets per second; sender 0 is without limit
	short            float64 // share of each rate that the sender falls short of it
	floor            float64 // share that is always lost
	noise            float64 // capacity varies by this share
	badEvery         int     // each such trial loses a tenth, at any rate
	goodEvery        int     // each such trial loses nothing, at any rate
	shortOnly        float64 // capacity of trials of more than a second, if not 0
	random           *rand.Rand
	trials           int
	offered          time.Duration
}

func (f *fake) Offer(_ context.Context, rate float64, d time.Duration) (Outcome, error) {
	f.trials++
	f.offered += d
	if f.sender > 0 {
		rate = min(rate, f.sender)
	}
	rate *= 1 - f.short
	capacity := f.capacity
	if f.shortOnly > 0 && d > time.Second {
		capacity = f.shortOnly
	}
	if f.noise > 0 {
		capacity *= 1 + f.noise*(2*f.random.Float64()-1)
	}
	sent := rate * d.Seconds()
	lost := max(sent-capacity*d.Seconds(), f.floor*sent)
	if f.badEvery > 0 && f.trials%f.badEvery == 0 {
		lost = max(lost, sent/10)
	}
	if f.goodEvery > 0 && f.trials%f.goodEvery == 0 {
		lost = 0
	}
	return Outcome{Sent: uint64(sent), Lost: uint64(lost), Rate: rate}, nil
}

func TestSearchFindsTheRate(t *testing.T) {
	for name, c := range map[string]struct {
		fake
		Search
		want    float64
		within  float64 // share
		limited bool
	}{
		"monotone": {fake{capacity: 437_000}, Search{}, 437_000, 0.021, false},
		"fine": {fake{capacity: 437_000}, Search{Resolution: 0.001}, 437_000, 0.002,
			false},
		"all is good":     {fake{capacity: 1e9}, Search{Max: 2e6}, 2e6, 0, false},
		"nothing is good": {fake{capacity: 10}, Search{}, 0, 0, false},
		"loses always, within the bound": {fake{capacity: 500_000, floor: 0.0005}, Search{}, 500_000, 0.021,
			false},
		"loses always, beyond the bound": {fake{capacity: 500_000, floor: 0.01}, Search{Loss: NoLoss}, 0, 0,
			false},
		"bound of a tenth": {fake{capacity: 450_000}, Search{Loss: 0.1, Resolution: 0.001},
			500_000, 0.002, false},
		"the sender is the limit": {fake{capacity: 1e9, sender: 300_000}, Search{}, 300_000, 0, true},
		"the sender is slower than max": {fake{capacity: 200_000, sender: 300_000}, Search{}, 200_000, 0.021,
			false},
		"what was sent, not what was asked for": {fake{capacity: 1e9, short: 0.04}, Search{Max: 1e6}, 960_000, 0,
			false},
		"bad when it takes longer":  {fake{capacity: 400_000, shortOnly: 300_000}, Search{}, 300_000, 0.021, false},
		"noisy":                     {fake{capacity: 400_000, noise: 0.05}, Search{Of: 3}, 400_000, 0.07, false},
		"a good trial now and then": {fake{capacity: 400_000, floor: 0.01, goodEvery: 3}, Search{Of: 3}, 0, 0, false},
		"a bad trial now and then":  {fake{capacity: 400_000, badEvery: 3}, Search{Of: 3}, 400_000, 0.021, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.fake.random = rand.New(rand.NewPCG(1, 2))
			var last Step
			c.Progress = func(s Step) { last = s }
			r, err := c.Search.Run(t.Context(), &c.fake)
			must(t, err)
			if c.limited && (last.Why != "confirm" || last.Target != c.want) {
				t.Errorf("confirmed %+v: want what the sender can send", last)
			}
			if math.Abs(r.Rate-c.want) > c.within*c.want || r.Limited != c.limited {
				t.Errorf("found %+v, want %.0f within %g, limited %v", r, c.want, c.within, c.limited)
			}
			if r.Trials != c.fake.trials || r.Trials > 60 {
				t.Errorf("%d trials, %d offered", r.Trials, c.fake.trials)
			}
		})
	}
}

// TestSearchRunsOutOfTrials: a system that nobody had the trials for is not one that loses at any
// rate.
func TestSearchRunsOutOfTrials(t *testing.T) {
	for trials := 3; trials < 60; trials++ {
		found, err := Search{Of: 3, Trials: trials, WarmUp: -1}.Run(t.Context(), &fake{capacity: 400_000})
		if err == nil && found.Rate < 300_000 {
			t.Errorf("%d trials: %.0f packets/s and no error", trials, found.Rate)
		}
		if err != nil && !errors.Is(err, ErrUndecided) {
			t.Errorf("%d trials: %v", trials, err)
		}
	}
	if found, err := (Search{Of: 3}).Run(t.Context(), &fake{capacity: 400_000, floor: 0.5}); err != nil ||
		found.Rate != 0 {
		t.Errorf("a system that loses at any rate: %+v, %v", found, err)
	}
}

func TestSearchGivesUp(t *testing.T) {
	// Good when short, bad when it is to be confirmed, at every rate.
	f := &fake{capacity: 400_000, shortOnly: 1}
	r, err := Search{Trials: 10}.Run(t.Context(), f)
	if f.trials > 12 || (err == nil && r.Rate > 0) {
		t.Errorf("%+v, %v after %d trials", r, err, f.trials)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Search{}).Run(ctx, f); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	for _, s := range []Search{{Min: 2, Max: 1}, {Loss: 1}, {Resolution: 2}, {Trials: 1}, {Of: 2}} {
		if _, err := s.Run(t.Context(), f); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

func TestSearchWarmsUpAndConfirms(t *testing.T) {
	var steps []Step
	s := Search{Duration: time.Second, Confirm: 5 * time.Second, WarmUp: 250 * time.Millisecond,
		Progress: func(s Step) { steps = append(steps, s) }}
	f := &fake{capacity: 400_000}
	_, err := s.Run(t.Context(), f)
	must(t, err)
	last := steps[len(steps)-1]
	if steps[0].Why != "warm-up" || last.Why != "confirm" || !last.Good {
		t.Errorf("first %+v, last %+v", steps[0], last)
	}
	if want := 250*time.Millisecond + 5*time.Second + time.Duration(len(steps)-2)*time.Second; f.offered != want {
		t.Errorf("offered for %v, want %v", f.offered, want)
	}
}
