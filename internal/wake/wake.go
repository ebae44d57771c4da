// Package wake wakes a goroutine when something has changed, or after a time.
package wake

import (
	"context"
	"time"
)

// Flag can be raised by any goroutine; one goroutine receives from it and then reads the present
// state. So Raise never blocks, and any number of changes before a receive count as one. Use
// NewFlag to make one.
type Flag chan struct{}

// NewFlag returns a flag that is not raised.
func NewFlag() Flag { return make(Flag, 1) }

// Raise wakes the receiver, now or when it receives next.
func (f Flag) Raise() {
	select {
	case f <- struct{}{}:
	default: // already raised
	}
}

// After waits for a time, and reports whether it has passed: false means that ctx has ended.
func After(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}
