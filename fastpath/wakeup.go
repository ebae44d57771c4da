package fastpath

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxPollLinks bounds the links a worker sleeps on.
const maxPollLinks = 63

// wakeup ends a worker's sleep from another goroutine: an eventfd.
type wakeup struct {
	fd  atomic.Int32 // 0 while closed
	fds [1 + maxPollLinks]unix.PollFd
}

func (e *wakeup) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	e.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	e.fd.Store(int32(fd))
	return nil
}

func (e *wakeup) close() {
	if fd := e.fd.Swap(0); fd != 0 {
		unix.Close(int(fd))
	}
}

func (e *wakeup) signal() {
	if fd := e.fd.Load(); fd != 0 {
		one := [8]byte{1}
		_, _ = unix.Write(int(fd), one[:]) // EAGAIN: it is signalled already
	}
}

func (e *wakeup) drain() {
	var b [8]byte
	_, _ = unix.Read(int(e.fd.Load()), b[:])
}
