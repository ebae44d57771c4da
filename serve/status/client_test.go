package status_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/serve/status"
)

// TestProcessThatEnds: a process accepts a request and ends, and another one has its socket: what
// only asks is answered by that one, and what changes something is not asked twice.
func TestProcessThatEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	accepted := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			if accepted++; accepted != 2 {
				c.Close()
				continue
			}
			next := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"pid": 2}`))
			})}
			one := &once{conns: make(chan net.Conn, 1), addr: l.Addr()}
			one.conns <- c
			go func() { _ = next.Serve(one) }()
			t.Cleanup(func() { next.Close() })
		}
	}()
	client := status.NewClient(path)
	if v, err := client.Status(context.Background(), false); err != nil || v.PID != 2 {
		t.Errorf("process %d, %v", v.PID, err)
	}
	if _, err := client.DeleteFlows(context.Background(), status.FlowFilter{}, true); err == nil {
		t.Error("flows were deleted by nobody")
	}
	l.Close()
	if <-done; accepted != 3 {
		t.Errorf("%d connections, want 3", accepted)
	}
}

// TestConnectionForEachRequest: an idle connection may be to a process that has handed over since
// and is stopped, so none is used again.
func TestConnectionForEachRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	connections := 0
	server := &http.Server{
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			connections++
			return context.WithValue(ctx, key{}, connections)
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"pid": %d}`, r.Context().Value(key{}))
		}),
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	client := status.NewClient(path)
	for i := 1; i <= 2; i++ {
		if v, err := client.Status(context.Background(), false); err != nil || v.PID != i {
			t.Errorf("request %d came by connection %d, %v", i, v.PID, err)
		}
	}
}

// once is a listener with one connection.
type once struct {
	conns chan net.Conn
	addr  net.Addr
}

func (o *once) Accept() (net.Conn, error) {
	c, ok := <-o.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (o *once) Close() error   { close(o.conns); return nil }
func (o *once) Addr() net.Addr { return o.addr }
