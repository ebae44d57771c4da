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

// TestReaderThatStalls: the server closes the connection of a client that does not read its answer.
// Otherwise the client would hold the answer's memory and goroutine until it ends.
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

// TestCaptureThatNobodyReads: a capture whose reader takes nothing ends, and the command says why.
// A slow reader has its time for each piece.
func TestCaptureThatNobodyReads(t *testing.T) {
	const stall = 500 * time.Millisecond
	g := &waitingGateway{Gateway: statustest.New(), ended: make(chan struct{})}
	g.CaptureBytes = []byte(strings.Repeat("x", 4<<20)) // more than sockets buffer
	path, _ := serveTimed(t, g, stall)
	client := status.NewClient(path)
	client.SetStall(stall)
	read, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := client.Capture(t.Context(), status.CaptureQuery{}, w)
		done <- err
	}()
	for range 4 {
		if _, err := io.ReadFull(read, make([]byte, 128<<10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stall / 3)
	}
	select {
	case <-g.ended:
	case <-time.After(within):
		t.Fatal("the capture goes on")
	}
	time.Sleep(stall)
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "a capture that nobody reads for 500ms") {
		t.Errorf("got %v", err)
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
	if err == nil || !strings.Contains(err.Error(), "backends are being made, or are not read yet") {
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
