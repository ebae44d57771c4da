package topo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// final is an error of a condition that will not become true any more.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks an error at which Until gives up at once.
func Final(err error) error { return final{err} }

// Until waits until a condition holds: until it returns no error. It gives up after the timeout and
// at a Final error, and returns the last error. It rests for the given time; up to a second longer
// where asking takes longer, because the question (nft, in a large table) may slow the awaited
// change; and longer where the processor is emulated.
//
// The timeout counts the rests as they were asked for: on a machine that is busy each takes longer,
// and so does the whole. After patience times the timeout on the clock it gives up in any case.
func Until(ctx context.Context, timeout, rest time.Duration, condition func(context.Context) error) error {
	const patience = 10
	ctx, cancel := context.WithTimeout(ctx, patience*timeout)
	defer cancel()
	for rested := time.Duration(0); ; {
		began := time.Now()
		err := condition(ctx)
		if err == nil {
			return nil
		}
		var f final
		if errors.As(err, &f) {
			return err
		}
		if rested >= timeout {
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		pause := max(rest, min(time.Since(began), time.Second))
		if stopped := Pause(ctx, machine.Slower(pause)); stopped != nil {
			return fmt.Errorf("%w: %w", stopped, err)
		}
		rested += machine.Slower(pause)
	}
}
