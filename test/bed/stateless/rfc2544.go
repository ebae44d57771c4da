package stateless

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Trial is a system that a rate can be offered to.
type Trial interface {
	// Offer sends at a rate (packets per second) for a while. An error ends the search.
	Offer(ctx context.Context, rate float64, d time.Duration) (Outcome, error)
}

// Outcome is what one trial found.
type Outcome struct {
	Sent, Lost uint64
	Rate       float64 // packets per second that were really sent
}

// Loss is the share that was lost, 0 to 1; 1 if nothing was sent.
func (o *Outcome) Loss() float64 {
	if o.Sent == 0 {
		return 1
	}
	return float64(o.Lost) / float64(o.Sent)
}

// Search looks for the highest rate at which no more than a bound is lost: the
// throughput of RFC 2544, section 26.1, which has 0 for the bound. Zero values mean
// the defaults.
type Search struct {
	Min, Max float64 // packets per second: 1,000 and 10,000,000
	// Loss is the bound as a share. NoLoss is 0; zero is the default, 0.001, because a
	// veth's own ring loses now and then what no system under test could have saved.
	Loss float64
	// Resolution is how far apart, as a share of the higher, the highest rate that was
	// good and the lowest that was bad may be: 0.02.
	Resolution float64
	Duration   time.Duration // of each trial: 1 s (the RFC says at least 60 s for the last)
	Confirm    time.Duration // of the trial that confirms the result: 3 x Duration
	WarmUp     time.Duration // of a trial at Min that does not count: 500 ms; negative for none
	// Of is how many trials decide about a rate: it is good if most of them are, that is, if the
	// median of their losses is within the bound. 1, the default, is RFC 2544's number. On a shared
	// machine, where all processors stand still for some milliseconds now and then, it should be 3.
	Of int
	// Trials bounds the number of trials, with those repeated: 60.
	Trials int
	// Progress is called for every trial; may be nil.
	Progress func(Step)
}

// NoLoss is the loss bound of RFC 2544.
const NoLoss = -1

// Step is one trial of a search.
type Step struct {
	Number  int
	Why     string // "warm-up", "search", "confirm"
	Target  float64
	Outcome Outcome
	Good    bool
	Low     float64 // the highest good rate so far, 0 if none
	High    float64 // the lowest bad rate so far, or Max
}

// Throughput is the result of a search.
type Throughput struct {
	Rate float64 // packets per second; 0 if even Min lost too much
	Loss float64 // in the confirming trial
	// Limited: the sender could send no more than Rate, and the system lost nothing
	// beyond the bound. It may be able to do more. A search that ends at Max without loss is not
	// marked: the caller gave Max.
	Limited bool
	Trials  int
}

// ErrUndecided is returned when Trials were not enough to confirm a rate.
var ErrUndecided = errors.New("no rate was confirmed: the system's loss does not depend on the rate alone")

func (s *Search) setDefaults() error {
	setDefault(&s.Min, 1_000)
	setDefault(&s.Max, 10_000_000)
	setDefault(&s.Loss, 0.001)
	setDefault(&s.Resolution, 0.02)
	setDefault(&s.Duration, time.Second)
	setDefault(&s.Confirm, 3*s.Duration)
	setDefault(&s.WarmUp, 500*time.Millisecond)
	setDefault(&s.Trials, 60)
	setDefault(&s.Of, 1)
	s.Loss = max(s.Loss, 0)
	switch {
	case s.Min < 0 || s.Max < s.Min:
		return fmt.Errorf("search from %g to %g packets per second: give the lower rate first", s.Min, s.Max)
	case s.Loss >= 1:
		return fmt.Errorf("loss bound %g: it is a share, below 1", s.Loss)
	case s.Resolution <= 0 || s.Resolution >= 1:
		return fmt.Errorf("resolution %g: it is a share, above 0 and below 1", s.Resolution)
	case s.Duration < 0 || s.Confirm < 0 || s.Trials < 3:
		return errors.New("durations and repetitions of a search are positive, and there are at least 3 trials")
	case s.Of < 0 || s.Of%2 == 0:
		return fmt.Errorf("%d trials to decide about a rate: want an odd number", s.Of)
	}
	return nil
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// sentEnough is the share of the target that must have been sent for a trial to be
// about the target.
const sentEnough = 0.95

// search is a search under way.
type search struct {
	*Search
	trial     Trial
	trials    int
	low, high float64
	limited   bool
}

// Run searches. ErrUndecided comes with the last that was found.
func (s Search) Run(ctx context.Context, t Trial) (Throughput, error) {
	if err := s.setDefaults(); err != nil {
		return Throughput{}, fmt.Errorf("rfc2544: %w", err)
	}
	r := &search{Search: &s, trial: t, high: s.Max}
	if s.WarmUp > 0 {
		if _, _, err := r.once(ctx, "warm-up", s.Min, s.WarmUp); err != nil {
			return Throughput{}, err
		}
	}
	// The highest first: it shows the rate that the sender reaches.
	if err := r.try(ctx, s.Max); err != nil {
		return Throughput{}, err
	}
	for r.trials < s.Trials {
		if err := r.narrow(ctx); err != nil {
			return Throughput{}, err
		}
		switch {
		case r.low == 0 && r.high > r.Min: // and no trials are left
			return Throughput{Trials: r.trials}, ErrUndecided
		case r.low == 0:
			return Throughput{Trials: r.trials}, nil
		}
		good, outcome, err := r.confirm(ctx)
		if err != nil {
			return Throughput{}, err
		}
		found := Throughput{Rate: r.low, Loss: outcome.Loss(), Limited: r.limited, Trials: r.trials}
		if good {
			// The rate that was sent is confirmed, not the rate asked for.
			found.Limited = found.Limited || outcome.Rate < sentEnough*r.low
			found.Rate = min(r.low, outcome.Rate)
			return found, nil
		}
		// A rate may be good for a short trial and bad for a longer one: look below it, with longer
		// trials.
		r.high, r.low, r.limited, r.Duration = r.low, 0, false, r.Confirm
	}
	return Throughput{Rate: r.low, Trials: r.trials}, ErrUndecided
}

// narrow halves the interval until it is small. low stays 0 if nothing is good.
func (r *search) narrow(ctx context.Context) error {
	for !r.limited && r.high-r.low > r.Resolution*r.high && r.trials < r.Trials {
		// From the top, steps are small where a good rate is near.
		target := (r.low + r.high) / 2
		if r.low == 0 && target < r.Min {
			if r.high <= r.Min {
				return nil
			}
			target = r.Min
		}
		if err := r.try(ctx, target); err != nil {
			return err
		}
	}
	return nil
}

// try offers a rate and moves a bound of the interval.
func (r *search) try(ctx context.Context, target float64) error {
	good, outcome, err := r.decide(ctx, "search", target, r.Duration)
	switch {
	case err != nil:
		return err
	case good && outcome.Rate < sentEnough*target:
		r.low, r.limited = outcome.Rate, true
	case good:
		r.low = target
	default:
		// If the sender did not reach a bad rate, rates from the one that it reached are bad.
		r.high = min(target, max(outcome.Rate, r.low))
	}
	return nil
}

func (r *search) confirm(ctx context.Context) (good bool, o Outcome, err error) {
	return r.decide(ctx, "confirm", r.low, r.Confirm)
}

// decide reports whether most of Of trials are good, with the last outcome of the majority. The
// rest is not made once it cannot change anything. Without trials left a rate is bad.
func (r *search) decide(ctx context.Context, why string, target float64, d time.Duration) (bool, Outcome, error) {
	most := r.Of/2 + 1
	for passed, failed := 0, 0; ; {
		good, outcome, err := r.once(ctx, why, target, d)
		if err != nil {
			return false, outcome, err
		}
		if good {
			passed++
		} else {
			failed++
		}
		if passed == most || failed == most || r.trials >= r.Trials {
			return passed == most, outcome, nil
		}
	}
}

func (r *search) once(ctx context.Context, why string, target float64, d time.Duration) (bool, Outcome, error) {
	if err := ctx.Err(); err != nil {
		return false, Outcome{}, err
	}
	outcome, err := r.trial.Offer(ctx, target, d)
	if err != nil {
		return false, outcome, fmt.Errorf("rfc2544: trial at %.0f packets per second: %w", target, err)
	}
	r.trials++
	good := outcome.Loss() <= r.Loss
	if r.Progress != nil {
		r.Progress(Step{Number: r.trials, Why: why, Target: target, Outcome: outcome, Good: good, Low: r.low,
			High: r.high})
	}
	return good, outcome, nil
}

// Offer makes a Lab a Trial.
func (l *Lab) Offer(ctx context.Context, rate float64, d time.Duration) (Outcome, error) {
	r, err := l.Trial(ctx, Load{Rate: rate, Duration: d})
	if err != nil {
		return Outcome{}, err
	}
	return r.Outcome(), nil
}

// Outcome returns the part of a trial's result that a Search needs.
func (r *Result) Outcome() Outcome {
	return Outcome{Sent: r.Sent.Packets, Lost: r.Lost(), Rate: r.Sent.Rate()}
}
