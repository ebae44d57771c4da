//go:build root

package cluster

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// echo answers each connection to a host's loopback with what it says.
func echo(t *testing.T, h *topo.Host) (port int) {
	t.Helper()
	l, err := h.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // the client sees what is missing
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestRelay(t *testing.T) {
	n := newNet(t, topo.Config{OneArmed: true})
	from, to := n.Gateway, n.Backends[0]
	r, err := newRelay(from, to, echo(t, to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	address := r.listener.Addr().String()
	dial := func() net.Conn {
		t.Helper()
		c, err := from.Dial(testContext(t), "tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	exchange := func() {
		t.Helper()
		c, said := dial(), strings.Repeat("all of it ", 1<<16)
		go func() {
			_, _ = io.WriteString(c, said) // or the answer is not complete
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		if heard, err := io.ReadAll(c); err != nil || string(heard) != said {
			t.Errorf("said %d bytes, heard %d: %v", len(said), len(heard), err)
		}
	}
	exchange()

	open := dial()
	if _, err := open.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, make([]byte, len("half"))); err != nil { // now it is passed on
		t.Fatal(err)
	}
	r.pause()
	if n, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes by a connection that the pause must end: %v", n, err)
	}
	if _, err := from.Dial(testContext(t), "tcp4", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while paused: %v, want refused", err)
	}
	if err := r.resume(); err != nil {
		t.Fatal(err)
	}
	exchange()
}

// TestReservedPort: while a port is ours and nobody listens, connections to it are
// refused, others cannot take it, and those who know may listen.
func TestReservedPort(t *testing.T) {
	n := newNet(t, topo.Config{OneArmed: true})
	p, err := reservePort(n.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p.number}).String()
	if _, err := n.Gateway.Dial(testContext(t), "tcp4", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want refused", err)
	}
	if l, err := n.Gateway.Listen("tcp4", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen: %v %v, want address in use", l, err)
	}
	if err := p.release(); err != nil {
		t.Fatal(err)
	}
	l, err := n.Gateway.Listen("tcp4", address)
	if err != nil {
		t.Fatalf("listen after the release: %v", err)
	}
	l.Close()
}
