package status_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	return serveThrough(t, g, timeout, func(l net.Listener) net.Listener { return l })
}

// serveThrough is serveTimed with a listener around that of the socket.
func serveThrough(
	t *testing.T, g status.Gateway, timeout time.Duration, around func(net.Listener) net.Listener,
) (path string, ended <-chan struct{}) {
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
	serveOn(t, s, around(l), path)
	return path, closed
}

// TestReaderThatStalls: the server closes the connection of a client that does not read its answer,
// except for a capture. Otherwise the client would hold the answer's memory and goroutine until it
// ends.
func TestReaderThatStalls(t *testing.T) {
	g := statustest.New()
	long := strings.Repeat("x", 4<<20) // more than a socket buffers
	g.ServiceList[0].Name = long
	g.BackendList[0].Service = long
	g.StatusView.Node = long
	g.EventList[0].Message = long
	g.Many(50_000)
	for _, request := range []string{"GET /services", "GET /backends", "GET /status?wait=true", "GET /events",
		"GET /flows", "GET /nothing"} {
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

// deadlines is a listener that notes whether its connections were written to with a deadline.
type deadlines struct {
	net.Listener
	with, without atomic.Int64 // writes
}

func (l *deadlines) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &deadlineConn{Conn: c, of: l}, err
}

type deadlineConn struct {
	net.Conn
	of  *deadlines
	has atomic.Bool
}

func (c *deadlineConn) SetWriteDeadline(t time.Time) error {
	c.has.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

func (c *deadlineConn) Write(b []byte) (int, error) {
	if c.has.Load() {
		c.of.with.Add(1)
	} else {
		c.of.without.Add(1)
	}
	return c.Conn.Write(b)
}

// TestSlowReaderOfCapture: the reader of a capture has any time, until the gateway has ended it.
func TestSlowReaderOfCapture(t *testing.T) {
	g := statustest.New()
	g.CaptureBytes = []byte(strings.Repeat("x", 1<<20))
	var l deadlines
	path, _ := serveThrough(t, g, time.Minute, func(of net.Listener) net.Listener { l.Listener = of; return &l })
	read, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := status.NewClient(path).Capture(ctx, status.CaptureQuery{}, w)
		done <- err
	}()
	if _, err := io.ReadFull(read, make([]byte, len(g.CaptureBytes))); err != nil {
		t.Fatal(err)
	}
	if n := l.with.Load(); n != 0 || l.without.Load() == 0 {
		t.Errorf("%d writes of the capture had a deadline, %d had none", n, l.without.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if l.with.Load() == 0 {
		t.Error("the end of the answer had no deadline")
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

// TestUnreadAnswers: two answers of a kind are in memory at most. Answers of other kinds and short
// ones are not delayed, and a reader that takes all its time for each piece still loses its
// connection, and with it the memory of its answer.
func TestUnreadAnswers(t *testing.T) {
	g := statustest.New()
	g.BackendList[0].Service = strings.Repeat("x", 4<<20)
	g.StatusView.Node = strings.Repeat("x", 60<<10)
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewReadServer(g, slog.New(slog.DiscardHandler), "/run/full.sock")
	s.SetAnswerTimeouts(2*time.Second, 50*time.Millisecond)
	client := serveOn(t, s, l, path)
	get := func(name string, times int) net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		one := "GET /" + status.Revision + name + " HTTP/1.1\r\nHost: x\r\n\r\n"
		go func() { _, _ = io.WriteString(c, strings.Repeat(one, times)) }()
		if _, err := c.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	slow := []net.Conn{get("/backends", 1), get("/backends", 1)}
	_, err = client.Backends(t.Context())
	if err == nil || !strings.Contains(err.Error(), "have not read their 2 answers") {
		t.Errorf("a third answer: %v", err)
	}
	for range 2 {
		get("/status", 10_000)
	}
	time.Sleep(200 * time.Millisecond) // until the answers fill the sockets
	if _, err := client.Status(t.Context(), false); err != nil {
		t.Errorf("a short answer: %v", err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err = client.Backends(t.Context()); err == nil {
			return
		}
		if time.Since(began) > within {
			t.Fatalf("slow readers keep their answers after %v: %v", within, err)
		}
		for _, c := range slow {
			_, _ = c.Read(make([]byte, 256))
		}
	}
}
