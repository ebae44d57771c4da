package thread

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Moment is the longest that Poll waits.
const Moment = time.Millisecond

// Break is Nap of which the Go scheduler is not told, and Poll is poll(2) for a Moment. The thread
// keeps its P, so that there is nothing that it could wait for afterwards. A goroutine that comes
// back from a system call as others make it waits, in a loop, for whoever looks at it just then, as
// the garbage collector does (runtime, casgstatus). If that is a thread that waits for this CPU,
// and the worker is a real-time thread, it waits until the kernel takes the other one to another
// CPU. Whoever wants the goroutine to stop meanwhile sends its thread a signal, which ends both.
func Break(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0) // see Nap
}

// Poll waits for files as poll(2) does, for a Moment at most. It returns how many are ready.
func Poll(files []unix.PollFd) (ready int, err error) {
	ts := unix.NsecToTimespec(int64(Moment))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(files))),
		uintptr(len(files)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
