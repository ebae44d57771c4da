// Package unixsocket makes Unix sockets that only their owner may open.
package unixsocket

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

// ErrInUse is returned by Listen and RemoveStale when another process answers on the socket.
var ErrInUse = errors.New("another process answers on the socket")

const (
	mode        = 0o600
	dialTimeout = 2 * time.Second
)

// Listen makes a socket. It replaces a socket that a killed process left, on which no process
// answers. Anything else at the path is an error, and so is a directory that others may write.
func Listen(path string) (net.Listener, error) {
	if err := RemoveStale(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		// The mode of an unbound socket becomes the mode of its file (unix_bind_bsd,
		// net/unix/af_unix.c), so other users can open it at no time.
		var chmodErr error
		err := raw.Control(func(fd uintptr) { chmodErr = syscall.Fchmod(int(fd), mode) })
		return errors.Join(err, chmodErr)
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// RemoveStale removes a socket on which no process answers. If one answers, it fails with ErrInUse.
func RemoveStale(path string) error {
	err := trusted.Socket(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%w %s", ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether another process uses it: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket that an ended process left: %w", err)
	}
	return nil
}
