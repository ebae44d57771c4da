package status_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// within bounds what a test waits for: far more than a loaded machine needs.
const within = 10 * time.Second

// serveTimed starts a server for g whose readers have a time for each piece, and returns the path
// of its socket, and a channel that gets a value when a connection has ended.
func serveTimed(t *testing.T, g status.Gateway, timeout time.Duration) (path string, ended <-chan struct{}) {
	path = filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s, closed := status.NewServer(g, slog.New(slog.DiscardHandler)), make(chan struct{}, 8)
	s.SetWriteTimeout(timeout)
	s.OnConnState(func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	})
	serveOn(t, s, l, path)
	return path, closed
}

// TestReaderThatStalls: the server closes the connection of a client that does not read its
// answer, whichever it asked for. Otherwise the answer's memory and goroutine would be held until
// the client ends.
func TestReaderThatStalls(t *testing.T) {
	g := statustest.New()
	long := strings.Repeat("x", 4<<20) // more than a socket buffers
	g.ServiceList[0].Name = long
	g.BackendList[0].Service = long
	g.StatusView.Node = long
	g.EventList[0].Message = long
	g.CaptureBytes = []byte(long)
	g.CaptureEnds = "written"
	g.Many(50_000)
	for _, request := range []string{"GET /services", "GET /backends", "GET /status?wait=true", "GET /events",
		"GET /flows", "POST /captures?rate=0&snap=0", "GET /nothing"} {
		t.Run(request, func(t *testing.T) {
			path, ended := serveTimed(t, g, time.Millisecond)
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			method, at, _ := strings.Cut(request, " ")
			one := method + " " + "/" + status.Revision + at + " HTTP/1.1\r\nHost: x\r\n\r\n"
			go func() { _, _ = io.WriteString(c, strings.Repeat(one, 10_000)) }() // short answers add up
			select {
			case <-ended:
			case <-time.After(within):
				t.Errorf("after %v the connection of a client that does not read is open", within)
			}
		})
	}
}

// TestAnswerAfterWait: the time of a reader does not run while the server has nothing to write.
func TestAnswerAfterWait(t *testing.T) {
	const timeout = time.Second
	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		g := statustest.New()
		g.Applied = make(chan struct{})
		path, _ := serveTimed(t, g, timeout)
		time.AfterFunc(3*timeout/2, func() { close(g.Applied) })
		if _, err := status.NewClient(path).Status(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
	t.Run("capture", func(t *testing.T) {
		t.Parallel()
		g := statustest.New()
		g.CaptureBytes = []byte("bytes")
		path, _ := serveTimed(t, g, timeout)
		ctx, cancel := context.WithTimeout(t.Context(), 3*timeout/2)
		defer cancel()
		if _, err := status.NewClient(path).Capture(ctx, status.CaptureQuery{}, io.Discard); err != nil {
			t.Error(err)
		}
	})
}
