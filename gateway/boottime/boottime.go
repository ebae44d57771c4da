// Package boottime reads CLOCK_BOOTTIME: the clock of flows and affinity pins, of the
// workers' LoopTick and of the kernel program's heartbeat. It continues while the machine is
// suspended, and all processes read the same one.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Nanos returns CLOCK_BOOTTIME in nanoseconds.
func Nanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}

// Wall returns the wall clock's time of a time of CLOCK_BOOTTIME, if neither is set in between.
func Wall(nanos uint64) time.Time { return time.Now().Add(-time.Duration(Nanos() - nanos)) }
