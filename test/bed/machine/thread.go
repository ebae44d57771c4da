package machine

import (
	"errors"
	"os"
	"runtime"
	"time"
	"unsafe"

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

// Shortages are the errors of a process, or a machine, that is out of descriptors or memory. They
// do not say whether the object to read exists.
var Shortages = []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS}

// Short runs f on a thread of its own, whose system calls that open a file or a socket, use a BPF
// object or send a netlink request fail with an error. The thread is in the network namespace of
// the caller, and ends with f. The program goes on without the errors.
func Short(t tester, with unix.Errno, f func()) {
	t.Helper()
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		err := enter(here)
		defer func() { done <- err }()
		if err == nil {
			err = shorten(with)
		}
		if err == nil {
			err = errors.New("the test has ended")
			f()
			err = nil
		}
	}()
	if err := <-done; err != nil {
		t.Fatal("with ", with, ": ", err)
	}
}

// enter moves the thread into a network namespace, unless it is there.
func enter(to *os.File) error {
	var want, is unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &want); err != nil {
		return err
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &is); err != nil || is.Ino == want.Ino {
		return err
	}
	return unix.Setns(int(to.Fd()), unix.CLONE_NEWNET)
}

// shorten makes system calls of the thread fail, for as long as it lives (seccomp(2)). It needs no
// capability.
func shorten(with unix.Errno) error {
	calls := []uint32{unix.SYS_OPENAT, unix.SYS_SOCKET, unix.SYS_BPF, unix.SYS_SENDTO}
	// struct seccomp_data begins with the number of the call.
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for i, nr := range calls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
			Jt: uint8(len(calls) - i), K: nr})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(with)})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
	runtime.KeepAlive(program)
	return err
}
