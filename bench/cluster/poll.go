package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/bench/machine"
)

// permanent is an error of a condition that will not become true any more.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

var pollInterval = machine.Slower(20 * time.Millisecond)

// poll waits until a condition holds: until it returns no error. It gives up after the
// timeout and at a permanent error, with what was wrong last. It rests as long as it
// has asked, because asking (nft, in a large table) may cost what is waited for, and
// longer where the processor is emulated.
func poll(ctx context.Context, timeout time.Duration, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		began := time.Now()
		err := condition(ctx)
		if err == nil {
			return nil
		}
		var p permanent
		if errors.As(err, &p) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(max(pollInterval, machine.Slower(time.Since(began)))):
		}
	}
}
