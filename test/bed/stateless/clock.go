package stateless

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock reads CLOCK_MONOTONIC, which BPF programs and other processes read too,
// without a system call: Go's own monotonic clock is the same one, but shows only
// differences (runtime.nanotime reads it in the vDSO).
type clock struct {
	base  time.Time
	nanos uint64 // CLOCK_MONOTONIC at base
}

// newClock takes the pair of readings that was the closest together out of some.
func newClock() clock {
	const tries = 16
	var best clock
	shortest := time.Hour
	for range tries {
		var ts unix.Timespec
		before := time.Now()
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail on Linux
		if took := time.Since(before); took < shortest {
			shortest = took
			best = clock{base: before.Add(took / 2), nanos: uint64(ts.Nano())}
		}
	}
	return best
}

func (c *clock) now() uint64 { return c.nanos + uint64(time.Since(c.base)) }
