package rollout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// attempt is one new connection.
type attempt struct {
	began   time.Time
	rolling bool          // to the Service that is updated
	connect time.Duration // time to connect; of answered attempts
	failure string        // reason for no answer; empty if answered
}

// load opens new connections from a host at a steady rate, whether or not they are answered.
type load struct {
	host    *topo.Host
	targets []netip.AddrPort // in turn
	rate    int              // connections a second
	timeout time.Duration    // of one, until the pod's greeting
	rolling bool

	open sync.WaitGroup
	mu   sync.Mutex
	all  []attempt
}

// run opens connections until ctx is done, and waits for the last ones.
func (l *load) run(ctx context.Context) error {
	err := l.host.Run(func() error {
		next := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(time.Until(next))
			next = next.Add(time.Second / time.Duration(l.rate))
			if err := l.one(l.targets[i%len(l.targets)]); err != nil {
				return fmt.Errorf("%s: %w", l.host.Name, err)
			}
		}
		return nil
	})
	l.open.Wait()
	return err
}

// one begins a connection on the calling thread, which is in the host's namespace. Any thread can
// finish it: thousands of connections to a dead pod must not occupy as many threads.
func (l *load) one(target netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a := attempt{began: time.Now(), rolling: l.rolling}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(target.Port()), Addr: target.Addr().As4()})
	connection := os.NewFile(uintptr(fd), "connection")
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		connection.Close()
		a.failure = err.Error()
		l.note(a)
		return nil
	}
	l.open.Go(func() {
		defer connection.Close()
		if err := a.finish(connection, l.timeout); err != nil {
			a.failure = reason(err)
		}
		l.note(a)
	})
	return nil
}

// finish waits for the connection and the pod's greeting.
func (a *attempt) finish(connection *os.File, timeout time.Duration) error {
	if err := connection.SetDeadline(a.began.Add(timeout)); err != nil {
		return err
	}
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	var outcome error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			outcome = err
		case code != 0:
			outcome = unix.Errno(code)
		default:
			_, err := unix.Getpeername(int(fd))
			return err == nil // not yet connected
		}
		return true
	})
	if err := errors.Join(err, outcome); err != nil {
		return err
	}
	a.connect = time.Since(a.began)
	greeting, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddr(greeting[:len(greeting)-1]); err != nil {
		return fmt.Errorf("not a pod's greeting: %w", err)
	}
	return nil
}

// reason describes an error without addresses, so that equal errors count as one.
func reason(err error) string {
	var code unix.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &code):
		return code.Error()
	}
	return err.Error()
}

func (l *load) note(a attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, a)
}

// attempts returns the attempts that have ended.
func (l *load) attempts() []attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]attempt(nil), l.all...)
}
