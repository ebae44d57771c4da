package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// TestStatusConnections: each status socket closes its oldest connection when it has too many, so
// that clients that hold connections do not block others.
func TestStatusConnections(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	shared, err := unixsocket.Share(filepath.Join(dir, "readers"), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	log, g := slog.New(slog.DiscardHandler), statustest.New()
	s := servers{readers: readers{socket: shared, path: filepath.Join(dir, "readers")}}
	defer s.wait()
	full := filepath.Join(t.TempDir(), "full")
	if err := s.serveStatus(full, g, log); err != nil {
		t.Fatal(err)
	}
	s.readers.serve(g, full, &s.group, log)
	c := config.Default()
	c.StateDir = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	waits := &standby{d: &Daemon{settings: &settings{inForce: c}, log: log}, cancel: cancel}
	waits.serve(ctx)
	defer waits.stop()
	for _, path := range []string{full, s.readers.path, c.WaitingSocket()} {
		var oldest net.Conn
		for i := range statusConnections + 1 {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// No timeout of the server ends a request whose body is missing.
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				oldest = c
			}
		}
		_ = oldest.SetReadDeadline(time.Now().Add(30 * time.Second)) // only a server without a limit needs it
		if _, err := oldest.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the oldest of %d connections is not closed: %v", path, statusConnections+1, err)
		}
		if _, err := status.NewClient(path).Stats(t.Context()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
