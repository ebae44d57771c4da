package fastpath

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// wakeup ends a sleep from another goroutine: an eventfd.
type wakeup struct {
	fd atomic.Int32 // 0 while closed
	mu sync.Mutex   // a number that is closed may be another file's: signal and close exclude each other
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

// poll is what poll(2) waits for.
func (e *wakeup) poll() unix.PollFd { return unix.PollFd{Fd: e.fd.Load(), Events: unix.POLLIN} }

func (e *wakeup) signal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fd := e.fd.Load(); fd != 0 {
		one := [8]byte{1}
		_, _ = unix.Write(int(fd), one[:]) // EAGAIN: it is signalled already
	}
}

func (e *wakeup) drain() {
	var b [8]byte
	_, _ = unix.Read(int(e.fd.Load()), b[:])
}
