package cli

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/wake"
)

// attachedEvery is the interval at which attached looks.
const attachedEvery = time.Second

// attached returns a context that ends with ctx, or when standard output is a pipe or socket whose
// reader has gone. A command that prints nothing for long gets no SIGPIPE: it would go on after its
// ssh or pipeline has ended.
//
// With in, it ends when the other end of standard input is closed as well: kubectl exec -i does
// that, and keeps the reader of the output. An input that is closed when the command starts (ssh
// -n, cron) or is /dev/null (systemd, nohup) does not count.
func (s *session) attached(ctx context.Context, in *os.File) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	out, _ := s.app.Out.(*os.File)
	if out == nil && in == nil {
		return ctx, cancel
	}
	go func() {
		for first := true; ; first = false {
			if !wake.After(ctx, attachedEvery) {
				return
			}
			if first && in != nil && hungUp(in) {
				in = nil
			}
			if out != nil && hungUp(out) || in != nil && hungUp(in) {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}

// hungUp reports whether the other end of a pipe, socket or terminal is closed (poll(2)). It reads
// nothing.
func hungUp(f *os.File) bool {
	connection, err := f.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	_ = connection.Control(func(fd uintptr) { // an error means that f is closed
		polled := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(polled, 0)
		gone = err == nil && n > 0 && polled[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return gone
}
