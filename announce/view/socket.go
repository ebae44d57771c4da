package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/internal/wake"
)

// timeout bounds both ends of a request. It is below the 5 s of the kubelet's probe in the chart,
// so that the probe's Event has the reason.
const timeout = 4 * time.Second

// DefaultSocket is the announcer's default socket.
const DefaultSocket = "/run/sluice-announcer/status.sock"

// Listen makes the socket. It fails if another announcer of the node has it: two would compete for
// the sessions.
func Listen(path string) (net.Listener, error) {
	l, err := unixsocket.Listen(path)
	if errors.Is(err, unixsocket.ErrInUse) {
		return nil, fmt.Errorf("another announcer answers on %s: stop it, or use another --state-dir for this one",
			path)
	}
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	return l, nil
}

// Serve writes a View to each connection, until ctx is done.
func Serve(ctx context.Context, l net.Listener, current func() *View, log *slog.Logger) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Warn("status socket", "error", err)
			wake.After(ctx, time.Second)
			continue
		}
		go func() {
			defer conn.Close()
			if conn.SetWriteDeadline(time.Now().Add(timeout)) == nil {
				_ = json.NewEncoder(conn).Encode(current()) // the reader may have gone away
			}
		}()
	}
}

// ErrNotRunning is wrapped by errors of Ask when no announcer answers on the socket.
var ErrNotRunning = errors.New("is sluice-announcer running?")

// Ask returns the View of the announcer behind a socket.
func Ask(ctx context.Context, path string) (*View, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no announcer answers on %s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no permission to open %s: run as the user that the announcer runs as (root)", path)
	case err != nil:
		return nil, fmt.Errorf("ask the announcer: %w", err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("the announcer does not answer on %s within %v: %s", path, timeout,
			unixsocket.WhySilent(path))
	}
	if err != nil {
		return nil, fmt.Errorf("ask the announcer on %s: %w", path, err)
	}
	var v View
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("the announcer's answer cannot be parsed; do both have the same version? %w", err)
	}
	return &v, nil
}
