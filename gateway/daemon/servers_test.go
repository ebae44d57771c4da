package daemon

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// TestStatusConnections: both status sockets bound their connections, and the oldest gives way, so
// that clients that hold connections keep no other from an answer.
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
	for _, path := range []string{full, s.readers.path} {
		var oldest net.Conn
		for i := range statusConnections + 1 {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if i == 0 {
				oldest = c
			}
		}
		// Less than the server's time for headers and for idle connections.
		_ = oldest.SetReadDeadline(time.Now().Add(4 * time.Second))
		if _, err := oldest.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the oldest of %d connections is not closed: %v", path, statusConnections+1, err)
		}
		if _, err := status.NewClient(path).Services(t.Context()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
