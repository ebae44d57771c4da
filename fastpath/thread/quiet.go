package thread

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Moment is the longest that Poll should wait: longer than what lies between packets of 1,000 a
// second, so that a sleep is mostly one system call, and shorter than the 10 ms after which the Go
// scheduler takes a P away.
const Moment = 4 * time.Millisecond

// QuietNap is Nap of which the Go scheduler is not told, and Poll is such a poll(2): for
// real-time threads. The thread keeps its P, so that coming back changes nothing that somebody may
// hold just then. A goroutine that comes back from a system call as others make it waits, in a
// loop, for whoever looks at it, as the garbage collector does (runtime, casgstatus): as long as it
// takes the kernel to give that thread a CPU, if it is one that waits for the worker's. Whoever
// wants the goroutine to stop meanwhile sends its thread a signal, which ends both; an ordinary
// thread would get it only once it has a CPU.
func QuietNap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0) // see Nap
}

// Poll waits for files as poll(2) does, for a time that should be a Moment at most. It returns how
// many are ready.
func Poll(files []unix.PollFd, within time.Duration) (ready int, err error) {
	ts := unix.NsecToTimespec(int64(within))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(files))),
		uintptr(len(files)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
