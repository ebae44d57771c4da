// Package wake tells a goroutine that something has changed.
package wake

// Flag is raised by any goroutine and received from by one, which looks at what there is then. So
// raising never waits, and any number of changes before a look are one. Make it by NewFlag.
type Flag chan struct{}

// NewFlag returns a flag that is not raised.
func NewFlag() Flag { return make(Flag, 1) }

// Raise wakes the receiver, now or when it receives next.
func (f Flag) Raise() {
	select {
	case f <- struct{}{}:
	default: // it is raised already
	}
}
