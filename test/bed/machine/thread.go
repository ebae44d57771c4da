package machine

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/thread"
)

// CPUTime returns the processor time that f takes on its thread. Unlike time on the clock it does
// not grow with the number of processes that share the CPUs.
func CPUTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	f()
	return threadTime() - began
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail: every Linux has this clock
	return time.Duration(t.Nano())
}

// WakeUpCost returns the processor time that a thread uses to sleep and wake once, the mean of 500:
// 5 us on iron, 50 us in some virtual machines.
func WakeUpCost() time.Duration {
	const n = 500
	return CPUTime(func() {
		for range n {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil) // a signal may end it early
		}
	}) / n
}

// OnCPU runs f on a thread of its own whose sleeps are exact, and which is pinned to a CPU unless
// that is negative. The thread ends with f, so no other goroutine inherits its settings.
func OnCPU(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		// Sleeps are else rounded up to 50 us (prctl(2), PR_SET_TIMERSLACK).
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		if cpu >= 0 {
			if err := thread.Bind(cpu); err != nil {
				done <- err
				return
			}
		}
		done <- f()
	}()
	return <-done
}

// LimitDescriptors sets how many descriptors a process may have open (RLIMIT_NOFILE); pid 0 is this
// one. Those that are open stay. It returns what sets the limit back.
func LimitDescriptors(t tester, pid int, most uint64) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before)
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}, nil)
	}
	if err != nil {
		t.Fatal("limit descriptors: ", err)
	}
	return func() {
		t.Helper()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Fatal("limit descriptors: ", err)
		}
	}
}
