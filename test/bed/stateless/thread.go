package stateless

import (
	"fmt"
	"time"

	"github.com/vishvananda/netns"
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

// onPortThread is onThread in the namespace of the sending port: where a program is run,
// its redirects find the interface.
func onPortThread(tx *Tx, number int, f func() error) error {
	return onThread(tx.CPUs, number, func() error {
		var ns netns.NsHandle
		err := tx.Port.Run(func() (err error) {
			ns, err = netns.Get()
			return err
		})
		if err != nil {
			return fmt.Errorf("namespace of %s: %w", tx.Port.Interface, err)
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter the namespace of %s: %w", tx.Port.Interface, err)
		}
		return f()
	})
}
