// Package boottime reads CLOCK_BOOTTIME: the clock of flows and affinity pins, of the
// workers' LoopTick and of the kernel program's heartbeat. It continues while the machine is
// suspended, and all processes read the same one.
package boottime

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Nanos returns CLOCK_BOOTTIME in nanoseconds.
func Nanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}

// Now returns the same moment by CLOCK_BOOTTIME, in nanoseconds, and by Go's clocks.
func Now() (nanos uint64, at time.Time) { return read(Nanos, time.Now) }

const (
	reads    = 8                     // at most
	goodRead = 20 * time.Microsecond // a thread that is not preempted takes a tenth of it
)

// read reads Go's clocks between two reads of CLOCK_BOOTTIME. A thread that is preempted in between
// would be wrong by the time it waited, so the shortest of several reads counts.
func read(boot func() uint64, now func() time.Time) (nanos uint64, at time.Time) {
	shortest := uint64(math.MaxUint64)
	for range reads {
		before := boot()
		t := now()
		between := boot() - before
		if between < shortest {
			shortest, nanos, at = between, before+between/2, t
		}
		if shortest <= uint64(goodRead) {
			break
		}
	}
	return nanos, at
}

// Offset returns the nanoseconds from CLOCK_BOOTTIME to the wall clock. Only a step of the wall
// clock changes it: NTP slews both alike.
func Offset() int64 {
	nanos, at := Now()
	return at.UnixNano() - int64(nanos)
}

// Wall returns the wall clock's time of a time of CLOCK_BOOTTIME.
func Wall(nanos uint64) time.Time { return time.Unix(0, int64(nanos)+Offset()) }
