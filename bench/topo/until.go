package topo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/bench/machine"
)

// final is an error of a condition that will not become true any more.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks an error at which Until gives up at once.
func Final(err error) error { return final{err} }

// Until waits until a condition holds: until it returns no error. It gives up after the timeout and
// at a Final error, with what was wrong last. It rests for the given time; up to a second longer
// where asking takes longer, because that (nft, in a large table) may cost what is waited for; and
// longer where the processor is emulated.
func Until(ctx context.Context, timeout, rest time.Duration, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		began := time.Now()
		err := condition(ctx)
		if err == nil {
			return nil
		}
		var f final
		if errors.As(err, &f) {
			return err
		}
		if stopped := Pause(ctx, machine.Slower(max(rest, min(time.Since(began), time.Second)))); stopped != nil {
			return fmt.Errorf("%w: %w", stopped, err)
		}
	}
}
