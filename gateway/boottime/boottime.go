// Package boottime reads CLOCK_BOOTTIME: the clock of flows and affinity pins, of the
// workers' LoopTick and of the kernel program's heartbeat. It continues while the machine is
// suspended, and all processes read the same one.
package boottime

import "golang.org/x/sys/unix"

// Nanos returns CLOCK_BOOTTIME in nanoseconds.
func Nanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}
