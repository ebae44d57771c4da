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

// Offset returns the nanoseconds from CLOCK_BOOTTIME to the wall clock. Only a step of the wall
// clock changes it: NTP slews both alike.
func Offset() int64 { return offset(Nanos, func() int64 { return time.Now().UnixNano() }) }

const (
	reads    = 8                     // at most
	goodRead = 20 * time.Microsecond // a thread that is not preempted takes a tenth of it
)

// offset reads the wall clock between two reads of CLOCK_BOOTTIME. A thread that is preempted in
// between would be wrong by the time it waited, so the shortest of several reads counts.
func offset(boot func() uint64, wall func() int64) (best int64) {
	shortest := uint64(math.MaxUint64)
	for range reads {
		before := boot()
		at := wall()
		between := boot() - before
		if between < shortest {
			shortest, best = between, at-int64(before+between/2)
		}
		if shortest <= uint64(goodRead) {
			break
		}
	}
	return best
}

// Wall returns the wall clock's time of a time of CLOCK_BOOTTIME.
func Wall(nanos uint64) time.Time { return time.Unix(0, int64(nanos)+Offset()) }
