package thread

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Moment is the maximum time that Poll should wait. It is longer than the gap between packets at
// 1,000 per second, so that most sleeps are one system call, and shorter than the 10 ms after which
// the Go scheduler retakes a P.
const Moment = 4 * time.Millisecond

// QuietNap is Nap without a notice to the Go scheduler, for real-time threads; Poll is poll(2) in
// the same way. The thread keeps its P, so the return from the call changes no state that another
// thread may have locked. After an ordinary system call the goroutine waits in a loop while the
// garbage collector, for example, examines it (runtime, casgstatus). If the collector's thread
// waits for the worker's CPU, that loop lasts until the kernel gives it another one. To stop the
// goroutine meanwhile, the runtime sends its thread a signal, which ends QuietNap and Poll; a
// thread without real-time priority would get the signal only once it has a CPU.
func QuietNap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0) // see Nap
}

// Poll waits for files like poll(2), for a time that should be at most Moment. It returns how many
// are ready.
func Poll(files []unix.PollFd, within time.Duration) (ready int, err error) {
	ts := unix.NsecToTimespec(int64(within))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(files))),
		uintptr(len(files)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
