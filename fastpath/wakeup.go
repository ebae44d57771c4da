package fastpath

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// wakeup is an eventfd by which one goroutine ends the sleep of another.
type wakeup struct {
	fd atomic.Int32 // 0 while closed
	mu sync.Mutex   // excludes signal during close: a closed descriptor's number may become another file's
}

func (e *wakeup) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	e.fd.Store(int32(fd))
	return nil
}

func (e *wakeup) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fd := e.fd.Swap(0); fd != 0 {
		unix.Close(int(fd))
	}
}

// poll returns the entry for poll(2).
func (e *wakeup) poll() unix.PollFd { return unix.PollFd{Fd: e.fd.Load(), Events: unix.POLLIN} }

// wakeupCount is added to the eventfd by signal, in little-endian order. A variable in signal
// would be allocated in race builds.
var wakeupCount = []byte{1, 0, 0, 0, 0, 0, 0, 0}

func (e *wakeup) signal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fd := e.fd.Load(); fd != 0 {
		_, _ = unix.Write(int(fd), wakeupCount) // EAGAIN: the eventfd is already signalled
	}
}

func (e *wakeup) drain() {
	var b [8]byte
	_, _ = unix.Read(int(e.fd.Load()), b[:])
}
