package status_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// serve starts a server for g on a socket of its own and returns a client.
func serve(t *testing.T, g status.Gateway) (*status.Client, string) {
	t.Helper()
	return serveLogged(t, g, slog.New(slog.DiscardHandler))
}

func serveLogged(t *testing.T, g status.Gateway, log *slog.Logger) (*status.Client, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the mask
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, status.NewServer(g, log), l, path), path
}

func serveOn(t *testing.T, s *status.Server, l net.Listener, path string) *status.Client {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c := status.NewClient(path)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return c
}

// TestReadServer: the socket for readers answers as the other one does, and a request that changes
// something leaves the gateway as it was.
func TestReadServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "s")
	l, err := unixsocket.Share(path, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(); err != nil {
		t.Fatal(err)
	}
	g := statustest.New()
	c := serveOn(t, status.NewReadServer(g, slog.New(slog.DiscardHandler), "/run/full.sock"), l, path)
	before, err := c.Denials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if flows, err := list(t.Context(), c, status.FlowFilter{}); err != nil || len(flows) != 4 {
		t.Errorf("flows %v, %v", flows, err)
	}
	backend, client := endpoint(t, "10.1.0.11:8080"), netip.MustParsePrefix("198.51.100.7/32")
	for name, change := range map[string]func() error{
		"drain":   func() error { _, err := c.Drain(t.Context(), backend, true); return err },
		"undrain": func() error { _, err := c.Drain(t.Context(), backend, false); return err },
		"delete":  func() error { _, err := c.DeleteFlows(t.Context(), status.FlowFilter{}, true); return err },
		"deny":    func() error { _, err := c.Deny(t.Context(), client, time.Minute); return err },
		"allow":   func() error { return c.Allow(t.Context(), client) },
		"capture": func() error {
			_, err := c.Capture(t.Context(), status.CaptureQuery{}, io.Discard)
			return err
		},
	} {
		if err := change(); err == nil || !strings.Contains(err.Error(), "for reading only") ||
			!strings.Contains(err.Error(), "--socket /run/full.sock") {
			t.Errorf("%s: %v", name, err)
		}
	}
	after, err := c.Denials(t.Context())
	if err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("denials changed, %v", err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	// Under a mask that takes nothing away a wrong mode would show.
	defer syscall.Umask(syscall.Umask(0))
	_, path := serve(t, statustest.New())
	s, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Mode(); got.Perm() != 0o600 || got&fs.ModeSocket == 0 {
		t.Errorf("mode is %v, want a socket with 0600", got)
	}
}

func TestListen(t *testing.T) {
	t.Run("in use", func(t *testing.T) {
		c, path := serve(t, statustest.New())
		if _, err := status.Listen(path); !errors.Is(err, status.ErrInUse) {
			t.Errorf("got %v, want ErrInUse", err)
		}
		if _, err := c.Services(t.Context()); err != nil {
			t.Errorf("the first daemon no longer answers: %v", err)
		}
	})
	t.Run("left by a dead daemon", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		again, err := status.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	})
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(path, []byte("keep"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := status.Listen(path); err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("got %v", err)
		}
		if b, _ := os.ReadFile(path); string(b) != "keep" {
			t.Error("the file was touched")
		}
	})
	t.Run("a directory that all may write", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		_, err := status.Listen(filepath.Join(dir, "s"))
		if err == nil || !strings.Contains(err.Error(), "chmod go-w") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		if _, err := status.Listen(filepath.Join(t.TempDir(), "none", "s")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

// TestViewsOverTheSocket: the client gets the views that the gateway returned.
func TestViewsOverTheSocket(t *testing.T) {
	g := statustest.New()
	c, _ := serve(t, g)
	for _, q := range []struct {
		name string
		ask  func() (any, error)
		want any
	}{
		{"services", func() (any, error) { return c.Services(t.Context()) }, g.Services()},
		{"backends", func() (any, error) { return c.Backends(t.Context()) }, g.Backends()},
		{"times", func() (any, error) { return c.Times(t.Context()) }, g.Times()},
		{"stats", func() (any, error) { return c.Stats(t.Context()) }, g.Stats()},
		{"source ports", func() (any, error) { return c.SourcePorts(t.Context()) }, g.SourcePorts()},
		{"status", func() (any, error) { return c.Status(t.Context(), false) }, g.Status()},
		{"status, applied", func() (any, error) { return c.Status(t.Context(), true) }, g.Status()},
	} {
		t.Run(q.name, func(t *testing.T) {
			got, err := q.ask()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, q.want) {
				t.Errorf("got  %+v\nwant %+v", got, q.want)
			}
		})
	}
}

func list(ctx context.Context, c *status.Client, f status.FlowFilter) (clients []string, err error) {
	err = c.Flows(ctx, f, func(v *status.FlowView) error {
		clients = append(clients, v.Client.String())
		return nil
	})
	return clients, err
}

func endpoint(t *testing.T, s string) status.Endpoint {
	t.Helper()
	e, err := status.ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestFlowFilters(t *testing.T) {
	c, _ := serve(t, statustest.New())
	const a, b, six, dns = "198.51.100.7:51000", "198.51.100.8:51001", "[2001:db8:f::7]:51000", "203.0.113.9:5353"
	for _, q := range []struct {
		name   string
		filter status.FlowFilter
		want   []string
	}{
		{"none", status.FlowFilter{}, []string{a, b, six, dns}},
		{"client address", status.FlowFilter{Client: endpoint(t, "198.51.100.7")}, []string{a}},
		{"client prefix", status.FlowFilter{Client: endpoint(t, "198.51.100.0/24")}, []string{a, b}},
		{"client and port", status.FlowFilter{Client: endpoint(t, "198.51.100.8:51001")}, []string{b}},
		{"other port", status.FlowFilter{Client: endpoint(t, "198.51.100.8:1")}, nil},
		{"VIP", status.FlowFilter{VIP: endpoint(t, "[2001:db8::10]:80")}, []string{six}},
		{"backend", status.FlowFilter{Backend: endpoint(t, "10.1.0.12")}, []string{b}},
		{"service", status.FlowFilter{Service: "default/web"}, []string{a, b, six}},
		{"service port", status.FlowFilter{Service: "default/web:http"}, []string{a, b, six}},
		{"part of a name", status.FlowFilter{Service: "default/we"}, nil},
		{"state", status.FlowFilter{State: "ESTABLISHED"}, []string{a, six}},
		{"protocol", status.FlowFilter{Protocol: "udp"}, []string{dns}},
		{"both", status.FlowFilter{State: "established", VIP: endpoint(t, "192.0.2.10")}, []string{a}},
	} {
		t.Run(q.name, func(t *testing.T) {
			got, err := list(t.Context(), c, q.filter)
			if err != nil || !reflect.DeepEqual(got, q.want) {
				t.Errorf("got %v, %v, want %v", got, err, q.want)
			}
		})
	}
}

// TestFlowsStream: the first flows arrive while the gateway has not given the last.
func TestFlowsStream(t *testing.T) {
	g := &gated{Gateway: statustest.New(), gate: make(chan struct{})}
	const n = 3000
	g.Many(n)
	c, _ := serve(t, g)
	seen := map[string]bool{}
	var once sync.Once
	err := c.Flows(t.Context(), status.FlowFilter{}, func(v *status.FlowView) error {
		once.Do(func() { close(g.gate) }) // only now the second page is given
		if seen[v.Client.String()] {
			return fmt.Errorf("%v came twice", v.Client)
		}
		seen[v.Client.String()] = true
		return nil
	})
	if err != nil || len(seen) != n {
		t.Errorf("got %d flows, %v, want %d", len(seen), err, n)
	}
}

// gated keeps every page but the first until its gate opens.
type gated struct {
	*statustest.Gateway
	gate chan struct{}
}

func (g *gated) Flows(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	if cursor == 0 {
		limit = 1 // too little to leave a buffer by itself
	} else {
		<-g.gate
	}
	return g.Gateway.Flows(f, cursor, limit, page)
}

// TestShutdownWaits: a request that is cut off still asks the gateway for a moment.
// Until it has ended, what it reads must not go away.
func TestShutdownWaits(t *testing.T) {
	g := &gated{Gateway: statustest.New(), gate: make(chan struct{})}
	g.Many(3000)
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewServer(g, slog.New(slog.DiscardHandler))
	served, listed, down := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	began := make(chan struct{})
	go func() {
		var once sync.Once
		c := status.NewClient(path)
		listed <- c.Flows(t.Context(), status.FlowFilter{}, func(*status.FlowView) error {
			once.Do(func() { close(began) })
			return nil
		})
	}()
	<-began // the second page waits at the gate
	over, cancel := context.WithCancel(t.Context())
	cancel()
	go func() { down <- s.Shutdown(over) }()
	if err := <-listed; err == nil {
		t.Error("a listing that was cut off looks complete")
	}
	select {
	case <-down:
		close(g.gate)
		t.Fatal("Shutdown returned while a request was in the gateway")
	case <-time.After(50 * time.Millisecond):
	}
	close(g.gate)
	if err := <-down; !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestFlowsReaderDisconnects: a reader that goes away ends the listing in the server,
// or the server of this test could not shut down.
func TestFlowsReaderDisconnects(t *testing.T) {
	g := &endless{Gateway: statustest.New()}
	g.Many(10)
	c, _ := serve(t, g)
	enough := errors.New("enough")
	if err := c.Flows(t.Context(), status.FlowFilter{}, func(*status.FlowView) error { return enough }); !errors.Is(err,
		enough) {
		t.Errorf("got %v", err)
	}
}

// TestFlowsReaderDisconnectsWithoutMatches is the same where no flow matches, so that no write
// tells the server that nobody reads.
func TestFlowsReaderDisconnectsWithoutMatches(t *testing.T) {
	g := &endless{Gateway: statustest.New()}
	c, _ := serve(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := list(ctx, c, status.FlowFilter{State: "none"}); err == nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// endless never ends its list.
type endless struct{ *statustest.Gateway }

func (g *endless) Flows(f *status.FlowFilter, _ uint64, limit int, page []status.FlowView) ([]status.FlowView, uint64) {
	page, _ = g.Gateway.Flows(f, 0, limit, page)
	return page, 1
}

// TestFlowsIncompleteListing: a listing that the daemon cannot finish is an error, not a short
// list.
func TestFlowsIncompleteListing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+
			"1\r\n{\r\n")
	}()
	c := status.NewClient(path)
	if got, err := list(t.Context(), c, status.FlowFilter{}); err == nil {
		t.Errorf("got %v without an error", got)
	}
}

func TestDeleteFlows(t *testing.T) {
	c, _ := serve(t, statustest.New())
	if _, err := c.DeleteFlows(t.Context(), status.FlowFilter{}, false); err == nil || !strings.Contains(err.Error(),
		"all=true") {
		t.Errorf("deleting everything by accident: %v", err)
	}
	if got, err := list(t.Context(), c, status.FlowFilter{}); len(got) != 4 || err != nil {
		t.Fatalf("after a refused delete: %v, %v", got, err)
	}
	if _, err := c.DeleteFlows(t.Context(), status.FlowFilter{State: "x"}, true); err == nil {
		t.Error("a filter and all together were accepted")
	}
	if n, err := c.DeleteFlows(t.Context(), status.FlowFilter{State: "established"}, false); n != 2 || err != nil {
		t.Errorf("got %d, %v, want 2", n, err)
	}
	if n, err := c.DeleteFlows(t.Context(), status.FlowFilter{}, true); n != 2 || err != nil {
		t.Errorf("all: got %d, %v, want 2", n, err)
	}
}

func TestDrain(t *testing.T) {
	g := statustest.New()
	c, _ := serve(t, g)
	for _, e := range []string{
		"10.1.0.11", "10.1.0.11:8080", "10.1.0.8/29", "[2001:db8:1::11]:8080", "2001:db8:1::11",
	} {
		if n, err := c.Drain(t.Context(), endpoint(t, e), true); err != nil {
			t.Errorf("%s: %v", e, err)
		} else if n != 1 && e != "10.1.0.8/29" {
			t.Errorf("%s drained %d backends", e, n)
		}
		if _, err := c.Drain(t.Context(), endpoint(t, e), false); err != nil {
			t.Errorf("undrain %s: %v", e, err)
		}
	}
	if _, err := c.Drain(t.Context(), endpoint(t, "10.9.9.9"), true); err == nil || !strings.Contains(err.Error(),
		"no backend 10.9.9.9") {
		t.Errorf("unknown backend: %v", err)
	}
	g.Err = errors.New("not now")
	if _, err := c.Drain(t.Context(), endpoint(t, "10.1.0.11"), true); err == nil || err.Error() != "not now" {
		t.Errorf("the gateway's reason got lost: %v", err)
	}
}

func TestWait(t *testing.T) {
	g := statustest.New()
	g.Applied = make(chan struct{})
	c, _ := serve(t, g)
	t.Run("gives up", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Status(ctx, true); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("waits", func(t *testing.T) {
		got := make(chan error, 1)
		go func() {
			_, err := c.Status(t.Context(), true)
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("returned before everything was applied: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(g.Applied)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
	t.Run("cannot be applied", func(t *testing.T) {
		g.Err = errors.New("Service default/old is refused")
		if _, err := c.Status(t.Context(), true); err == nil || err.Error() != g.Err.Error() {
			t.Errorf("got %v", err)
		}
	})
}

func TestNotRunning(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{stale, filepath.Join(dir, "absent")} {
		c := status.NewClient(path)
		_, err := c.Stats(t.Context())
		want := "the sluice daemon is not running: no process answers on " + path +
			"; start it with `sluice run --config FILE`, or give its socket with --socket"
		if !errors.Is(err, status.ErrNotRunning) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestBadRequests: nothing that is misspelt is taken for something else.
func TestBadRequests(t *testing.T) {
	_, path := serve(t, statustest.New())
	web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer web.CloseIdleConnections()
	for _, q := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/flows?cleint=10.0.0.1", 400, "parameter cleint: is unknown"},
		{"GET", "/flows?client=ten", 400, `parameter client: \"ten\" is no address`},
		{"GET", "/flows?state=a&state=b", 400, "parameter state is given 2 times"},
		{"DELETE", "/flows", 400, "give a filter"},
		{"DELETE", "/flows?all=perhaps", 400, "parameter all"},
		{"PUT", "/drains/nobody", 400, "is no address"},
		{"POST", "/stats", 405, "Method Not Allowed"},
		{"GET", "0/stats", 404, "404"}, // another revision
	} {
		request, err := http.NewRequestWithContext(t.Context(), q.method, "http://sluice/"+status.Revision+q.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := web.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != q.code || !strings.Contains(string(body), q.want) {
			t.Errorf("%s %s: %d %s, want %d and %q", q.method, q.path, response.StatusCode, body, q.code, q.want)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "10.0.0.1:80": "10.0.0.1:80", "10.0.0.7/8": "10.0.0.0/8", "::ffff:10.0.0.1": "10.0.0.1",
		"2001:db8::1": "2001:db8::1", "[2001:db8::1]": "2001:db8::1", "[2001:db8::1]:80": "[2001:db8::1]:80",
	} {
		e, err := status.ParseEndpoint(text)
		if err != nil || e.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, e, err, want)
		}
		if again, err := status.ParseEndpoint(e.String()); again != e || err != nil {
			t.Errorf("%s does not read back: %v, %v", e, again, err)
		}
	}
	for _, text := range []string{"", "web", "10.0.0", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1/33"} {
		if e, err := status.ParseEndpoint(text); err == nil {
			t.Errorf("%q is taken for %v", text, e)
		}
	}
}

// TestLogOfChanges: the log has what an operator did, in the form of the command and not of the
// URL, and by which user and process.
func TestLogOfChanges(t *testing.T) {
	by := fmt.Sprintf("uid=%d pid=%d", os.Getuid(), os.Getpid())
	var log bytes.Buffer
	g := statustest.New()
	g.CaptureBytes, g.CaptureEnds = []byte("x"), "a hand-over"
	c, _ := serveLogged(t, g, slog.New(slog.NewTextHandler(&log, nil)))
	for _, tt := range []struct {
		do   func() (int, error)
		want string
	}{
		{func() (int, error) {
			return c.DeleteFlows(t.Context(), status.FlowFilter{VIP: endpoint(t, "203.0.113.10:80"), Protocol: "tcp"},
				false)
		}, by + ` count=0 filter="vip 203.0.113.10:80, protocol tcp"`},
		{func() (int, error) { return c.DeleteFlows(t.Context(), status.FlowFilter{}, true) }, `filter="all flows"`},
		{func() (int, error) {
			v, err := c.Capture(t.Context(), status.CaptureQuery{Client: endpoint(t, "2001:db8::7"), Rate: 10,
				Drops: []string{"no_route"}, Program: []uint32{1, 6, 0, 0, 3325256711}}, io.Discard)
			return int(v.Records), err
		}, `msg="capture began" ` + by + ` filter="client 2001:db8::7, dropped by no_route, ` +
			`a program of 1 instructions, snap 0, rate 10"`},
		{func() (int, error) { return c.Drain(t.Context(), endpoint(t, "10.1.0.11:8080"), true) },
			`msg="backend drained by the operator" ` + by + ` backend=10.1.0.11:8080 count=1`},
		{func() (int, error) { return c.Drain(t.Context(), endpoint(t, "10.1.0.11:8080"), false) },
			`msg="backend undrained by the operator: it gets new flows again" ` + by + ` backend=10.1.0.11:8080`},
	} {
		log.Reset()
		if _, err := tt.do(); err != nil || !strings.Contains(log.String(), tt.want) {
			t.Errorf("%v, logged %s, want %s", err, log.String(), tt.want)
		}
	}
}

// TestReasons: a mode is printed with its reason, and one reason for two modes is printed once.
func TestReasons(t *testing.T) {
	const can = "the driver supports it"
	for _, c := range []struct {
		name string
		v    status.InterfaceView
		q    status.QueueView
		want string
	}{
		{"both by the driver", status.InterfaceView{Mode: "native", Reason: can}, status.QueueView{Bound: true,
			ZeroCopy: true, Reason: can}, "native: the driver supports it; zero-copy: the driver supports it"},
		{"two reasons", status.InterfaceView{Mode: "native", Reason: can},
			status.QueueView{Bound: true, Reason: "the driver has no AF_XDP zero-copy"},
			"native: the driver supports it; copy: the driver has no AF_XDP zero-copy"},
		{"one queue is taken", status.InterfaceView{Mode: "generic", Reason: "configured"},
			status.QueueView{Reason: "queue is taken"}, "generic: configured; not bound: queue is taken"},
		{"the interface is closed", status.InterfaceView{Reason: "no such device"},
			status.QueueView{Reason: "no such device"}, "not bound: no such device"},
		{"no reason", status.InterfaceView{Mode: "native"}, status.QueueView{Bound: true}, ""},
	} {
		if got := c.v.Why(&c.q); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAnotherRevision checks that a client rejects a daemon of another revision unless it was told
// the revision.
func TestAnotherRevision(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v0/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })
	server := http.Server{Handler: mux}
	go server.Serve(l)
	defer server.Close()
	c := status.NewClient(path)
	_, ask := c.Status(t.Context(), false)
	_, drain := c.Drain(t.Context(), status.Endpoint{}, true)
	for _, err := range []error{ask, drain} {
		if err == nil || !strings.Contains(err.Error(), "of the same version?") {
			t.Errorf("%v, want a question about versions", err)
		}
	}
	c.SetRevision("v0")
	if _, err := c.Status(t.Context(), false); err != nil {
		t.Error(err)
	}
}
