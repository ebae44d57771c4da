package topo_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// TestUntil: it asks again, gives up in time with what was wrong last, and at once where that is
// final.
func TestUntil(t *testing.T) {
	broken := errors.New("broken")
	tries := 0
	err := topo.Until(t.Context(), time.Minute, time.Millisecond, func(context.Context) error {
		if tries++; tries < 3 {
			return broken
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%d tries: %v", tries, err)
	}
	err = topo.Until(t.Context(), time.Millisecond, time.Millisecond, func(context.Context) error { return broken })
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, broken) {
		t.Errorf("gave up with %v, want what was wrong last, too", err)
	}
	tries = 0
	err = topo.Until(t.Context(), time.Minute, time.Millisecond, func(context.Context) error {
		tries++
		return fmt.Errorf("wrapped: %w", topo.Final(broken))
	})
	if !errors.Is(err, broken) || tries != 1 {
		t.Errorf("%d tries of what is final: %v", tries, err)
	}
}
