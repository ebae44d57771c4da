package web

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// serve answers "ok" on a port of the loopback until the test ends.
func serve(t *testing.T, c ServeConfig) net.Addr {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Log = slog.New(slog.DiscardHandler)
	c.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, socket, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket.Addr()
}

func dial(t *testing.T, a net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request on a connection and reads the answer.
func ask(c net.Conn) (*http.Response, error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return nil, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return r, errors.Join(err, r.Body.Close())
}

// TestLimit: the oldest connection of all servers gives way, the others go on.
func TestLimit(t *testing.T) {
	limit := NewLimit(2)
	one, other := serve(t, ServeConfig{Limit: limit}), serve(t, ServeConfig{Limit: limit})
	oldest := dial(t, one)
	if _, err := ask(oldest); err != nil {
		t.Fatal(err)
	}
	second, third := dial(t, other), dial(t, one)
	if _, err := oldest.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest is not closed: %v", err)
	}
	for name, c := range map[string]net.Conn{"second": second, "third": third} {
		if _, err := ask(c); err != nil {
			t.Errorf("the %s is not answered: %v", name, err)
		}
		if _, err := ask(c); err != nil {
			t.Errorf("the %s is not kept: %v", name, err)
		}
	}
	if n := limit.Len(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// TestLimitForgets what clients close.
func TestLimitForgets(t *testing.T) {
	limit := NewLimit(2)
	at := serve(t, ServeConfig{Limit: limit})
	for range 10 {
		c := dial(t, at)
		if _, err := ask(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
		for end := time.Now().Add(10 * time.Second); limit.Len() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections 10 s after the last was closed", limit.Len())
			}
		}
	}
}

// TestOnce: an answer has the header Connection: close, and the connection ends.
func TestOnce(t *testing.T) {
	for _, once := range []bool{false, true} {
		c := dial(t, serve(t, ServeConfig{Limit: NewLimit(2), Once: once}))
		r, err := ask(c)
		if err != nil || r.Close != once {
			t.Errorf("once %t: %v, %v", once, r, err)
		}
		if _, err = ask(c); (err != nil) != once {
			t.Errorf("once %t: a second request: %v", once, err)
		}
	}
}
