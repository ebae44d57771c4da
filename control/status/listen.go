package status

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/trusted"
)

// ErrInUse is returned by Listen when another process answers on the socket.
var ErrInUse = errors.New("another sluice daemon answers on the status socket")

const (
	socketMode  = 0o600
	dialTimeout = 2 * time.Second
)

// Listen makes the unix socket. It replaces a socket on which no process answers, left by a daemon
// that was killed; anything else at the path is an error, and so is a directory that others may
// write.
func Listen(path string) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		// The mode of a socket that is not bound yet becomes the mode of its file
		// (unix_bind_bsd, net/unix/af_unix.c), so at no time can others open it.
		var chmodErr error
		err := raw.Control(func(fd uintptr) { chmodErr = syscall.Fchmod(int(fd), socketMode) })
		return errors.Join(err, chmodErr)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("status socket %s: %w", path, err)
	}
	return l, nil
}

func removeStale(path string) error {
	err := trusted.Socket(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("status socket: %w", err)
	}
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w %s; stop it, or give this one a stateDir of its own", ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("status socket %s: cannot tell whether another daemon uses it: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("status socket: remove the one a dead daemon left: %w", err)
	}
	return nil
}
