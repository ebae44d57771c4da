// Package boottime reads CLOCK_BOOTTIME: the clock of flows and affinity pins, of the
// workers' LoopTick and of the kernel program's heartbeat. It goes on while the machine
// sleeps, and a process that starts later reads the same one.
package boottime

import "golang.org/x/sys/unix"

// Nanos returns the time in nanoseconds.
func Nanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}
