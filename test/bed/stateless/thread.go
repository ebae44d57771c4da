package stateless

import (
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/machine"
)

// onThread calls f on a thread of its own, on one of the given CPUs if there are any.
func onThread(cpus []int, number int, f func() error) error {
	cpu := -1
	if len(cpus) > 0 {
		cpu = cpus[number%len(cpus)]
	}
	return machine.OnCPU(cpu, f)
}

// threadTime is the processor time of the calling thread (getrusage(2), RUSAGE_THREAD).
func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // cannot fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
