package stateless

import (
	"fmt"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// onThread calls f on a thread of its own, on the given CPU if there is one, whose
// sleeps are exact. The thread ends with f: what was set on it is nobody else's.
func onThread(cpus []int, number int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		done <- func() error {
			if len(cpus) > 0 {
				var set unix.CPUSet
				cpu := cpus[number%len(cpus)]
				set.Set(cpu)
				if err := unix.SchedSetaffinity(0, &set); err != nil {
					return fmt.Errorf("run on CPU %d: %w (is it online and in the process's cpuset?)", cpu, err)
				}
			}
			// Sleeps are else rounded up to 50 us (prctl(2), PR_SET_TIMERSLACK).
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
			return f()
		}()
	}()
	return <-done
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
