// Package wake wakes a goroutine when something has changed.
package wake

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
