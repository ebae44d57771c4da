package probe

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
)

func newProber(t *testing.T, refused func(netip.Addr) string) *Prober {
	t.Helper()
	p, err := New(refused, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// check makes one check and returns what it found.
func check(t *testing.T, p *Prober, to, text string) endpointhealth.Result {
	t.Helper()
	list, err := objects.ParseChecks(text)
	if err != nil {
		t.Fatal(err)
	}
	p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(to), Check: list[0].Check})
	select {
	case list := <-p.Results():
		if len(list) != 1 {
			t.Fatalf("%d results of one check", len(list))
		}
		return list[0].Result
	case <-time.After(20 * time.Second):
		t.Fatal("no result")
		return endpointhealth.Result{}
	}
}

func expect(t *testing.T, r endpointhealth.Result, ok bool, detail string) {
	t.Helper()
	if r.OK != ok || !strings.Contains(r.Detail, detail) {
		t.Errorf("got OK %v, %q after %v, want %v, %q", r.OK, r.Detail, r.Took, ok, detail)
	}
}

// closedPort returns an address where nobody listens: the port is bound, and so nobody else's.
func closedPort(t *testing.T, network string) string {
	t.Helper()
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	// Connected to itself elsewhere, a UDP socket takes no datagrams of others.
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if kind == unix.SOCK_DGRAM {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", a.(*unix.SockaddrInet4).Port)
}

// silentPort returns a TCP address that does not answer: the accept queue is full, so the kernel
// drops SYNs (net/ipv4/tcp_input.c, tcp_conn_request). open makes room.
func silentPort(t *testing.T) (address string, open func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address = fmt.Sprintf("127.0.0.1:%d", a.(*unix.SockaddrInet4).Port)
	var clients []net.Conn
	for range 8 {
		c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			break
		}
		clients = append(clients, c)
		t.Cleanup(func() { _ = c.Close() })
	}
	if len(clients) == 8 {
		t.Fatal("the accept queue does not fill up")
	}
	return address, func() {
		for range clients {
			if c, _, err := unix.Accept(fd); err == nil {
				_ = unix.Close(c)
			}
		}
	}
}

func TestTCP(t *testing.T) {
	p := newProber(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	expect(t, check(t, p, l.Addr().String(), "tcp"), true, "connected")
	expect(t, check(t, p, closedPort(t, "tcp"), "tcp"), false, "refused")
	if l6, err := net.Listen("tcp", "[::1]:0"); err == nil {
		defer l6.Close()
		expect(t, check(t, p, l6.Addr().String(), "tcp"), true, "connected")
	} else if !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Error(err)
	}
}

// TestSignalAfterEnd: who starts checks or closes while they end writes into no file that has the
// number of the eventfd by then.
func TestSignalAfterEnd(t *testing.T) {
	c, err := newConnector(func([]Finished) {})
	if err != nil {
		t.Fatal(err)
	}
	number := c.wake
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	c.run()
	for other := -1; other != number; {
		if other, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(other)
	}
	c.start(endpointhealth.Start{})
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(number, make([]byte, 8)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("another file got %d bytes (%v)", n, err)
	}
}

// TestTCPFailsAtOnce: a check whose connect fails is over, also where no other is under way that
// would wake the process.
func TestTCPFailsAtOnce(t *testing.T) {
	done := make(chan []Finished, 1)
	c, err := newConnector(func(list []Finished) { done <- list })
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := objects.ParseChecks("tcp")
	if err != nil {
		t.Fatal(err)
	}
	c.start(endpointhealth.Start{Target: netip.MustParseAddrPort("255.255.255.255:9"), Check: tcp[0].Check})
	if _, err := unix.Read(c.wake, make([]byte, 8)); err != nil { // as if run had read it
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); c.run() }()
	select {
	case list := <-done:
		expect(t, list[0].Result, false, "unreachable")
	case <-time.After(10 * time.Second):
		t.Error("no result")
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestTCPSilence: a check that nobody answers ends with its timeout; one that is answered by a
// later attempt passes, long before the kernel would have repeated the SYN of the first.
func TestTCPSilence(t *testing.T) {
	p := newProber(t, nil)
	address, open := silentPort(t)
	r := check(t, p, address, "tcp timeout=400ms")
	expect(t, r, false, "no answer in 400ms")
	for range 10 { // one of several tries: this process may wait for a CPU
		timer := time.AfterFunc(100*time.Millisecond, open)
		r = check(t, p, address, "tcp timeout=900ms")
		timer.Stop()
		if r.OK && r.Took >= 100*time.Millisecond && r.Took < 900*time.Millisecond {
			return
		}
		address, open = silentPort(t)
	}
	t.Errorf("%+v, want that it passed by the attempt at 225ms or a later one", r)
}

// TestTCPIsNotAccepted: a server has no connection of a check, unless this process was slow to end
// it: then the kernel completes the handshake. So one of several rounds counts.
func TestTCPIsNotAccepted(t *testing.T) {
	p := newProber(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const rounds, checks = 10, 50
	var accepted []int
	for range rounds {
		for range checks {
			expect(t, check(t, p, l.Addr().String(), "tcp"), true, "connected")
		}
		n := acceptAll(t, l)
		if accepted = append(accepted, n); n <= checks/5 {
			return
		}
	}
	t.Errorf("of %d checks a round the server accepted %v", checks, accepted)
}

// acceptAll accepts the connections that wait, and returns their number.
func acceptAll(t *testing.T, l net.Listener) (accepted int) {
	t.Helper()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for ; ; accepted++ {
		c, err := l.Accept()
		if err != nil {
			return accepted
		}
		_ = c.Close()
	}
}

// TestManyTCP: each check of many at once has its own result.
func TestManyTCP(t *testing.T) {
	p := newProber(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var accepted atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	}()
	closed := closedPort(t, "tcp")
	tcp, err := objects.ParseChecks("tcp timeout=3s")
	if err != nil {
		t.Fatal(err)
	}
	const n = 400
	for i := range n {
		to := l.Addr().String()
		if i%2 == 1 {
			to = closed
		}
		c := tcp[0].Check
		c.Name = strconv.Itoa(i) // which a TCP check does not read
		p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(to), Check: c})
	}
	seen := map[int]bool{}
	for len(seen) < n {
		select {
		case list := <-p.Results():
			for _, f := range list {
				i, _ := strconv.Atoi(f.Start.Check.Name)
				if seen[i] || f.Result.OK != (i%2 == 0) {
					t.Errorf("check %d: %+v", i, f.Result)
				}
				seen[i] = true
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%d results", len(seen))
		}
	}
}

// TestNoDescriptor: where this process has no descriptor left no kind of check says anything of the
// endpoint.
func TestNoDescriptor(t *testing.T) {
	p := newProber(t, nil)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	results := map[string]endpointhealth.Result{}
	func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
		}()
		for _, kind := range []string{"tcp", "http", "https", "grpc", "udp", "dns"} {
			results[kind] = check(t, p, "127.0.0.1:9", kind)
		}
	}()
	for kind, r := range results {
		if !r.NotMade || r.OK || r.Skipped || !strings.Contains(r.Detail, "too many open files") {
			t.Errorf("%s: %+v, want that it is not made", kind, r)
		}
	}
}

// TestLocalErrors: which errors are of this host, as the net package and system calls return them.
func TestLocalErrors(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		call  string
		local bool
	}{
		{syscall.EMFILE, "socket", true}, {syscall.EAFNOSUPPORT, "socket", true}, {syscall.ENFILE, "accept4", true},
		{syscall.EADDRNOTAVAIL, "connect", true}, {syscall.EPERM, "write", true}, {syscall.ENOBUFS, "write", true},
		{syscall.ENOMEM, "write", true}, {syscall.ECONNREFUSED, "connect", false}, {syscall.EACCES, "connect", false},
		{syscall.EHOSTUNREACH, "connect", false}, {syscall.ENETUNREACH, "connect", false},
		{syscall.ECONNRESET, "read", false}, {syscall.ETIMEDOUT, "connect", false},
	} {
		err := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError(c.call, c.errno)}
		r := resultOf("", fmt.Errorf("get: %w", err), time.Millisecond, time.Second)
		if r.NotMade != c.local || r.OK || r.Skipped {
			t.Errorf("%s: %v: %+v, want not made: %v", c.call, c.errno, r, c.local)
		}
	}
	if r := resultOf("", errNoAnswer, time.Second, time.Second); r.NotMade {
		t.Errorf("silence is not of this host: %+v", r)
	}
}

func TestRefusedAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newProber(t, func(a netip.Addr) string {
		if a.IsLoopback() {
			return "an address of this node"
		}
		return ""
	})
	for _, kind := range []string{"tcp", "http", "udp"} {
		r := check(t, p, l.Addr().String(), kind)
		if !r.Skipped || r.Detail != "not checked: an address of this node" {
			t.Errorf("%s: got %+v, want it skipped", kind, r)
		}
	}
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Accept(); err == nil {
		t.Errorf("%v connected", c.RemoteAddr())
	}
}

func TestHTTP(t *testing.T) {
	var asked atomic.Pointer[http.Request]
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		switch r.URL.Path {
		case "/fails":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/fails", http.StatusFound)
		case "/hangs":
			<-r.Context().Done()
		}
	})
	plain, secured := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secured.Close()
	secured.Config.ErrorLog = nil
	p := newProber(t, nil)
	at := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for _, tt := range []struct {
		name, to, check string
		ok              bool
		detail          string
	}{
		{"good", at(plain), "http path=/healthz", true, "status 200"},
		{"another status", at(plain), "http path=/fails", false, "status 503"},
		{"that status is expected", at(plain), "http path=/fails expect=503", true, "status 503"},
		{"a redirect is not followed", at(plain), "http path=/moved", true, "status 302"},
		{"hangs", at(plain), "http path=/hangs timeout=300ms", false, "no answer in 300ms"},
		{"nobody listens", closedPort(t, "tcp"), "http", false, "refused"},
		{"by TLS", at(secured), "https path=/healthz", true, "status 200"},
		{"TLS is not spoken there", at(plain), "https timeout=1s", false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) { expect(t, check(t, p, tt.to, tt.check), tt.ok, tt.detail) })
	}
	check(t, p, at(secured), "https host=shop.example.org:8443")
	if q := asked.Load(); q.Host != "shop.example.org:8443" || q.TLS.ServerName != "shop.example.org" {
		t.Errorf("by TLS: host %q, server name %q", q.Host, q.TLS.ServerName)
	}
	check(t, p, at(plain), "http method=HEAD path=/a?b=c host=shop.example.org")
	q := asked.Load()
	if got := q.Method + " " + q.RequestURI + " " + q.Host; got != "HEAD /a?b=c shop.example.org" {
		t.Errorf("the request is %q", got)
	}
}

// answering serves datagrams until the test ends.
func answering(t *testing.T, answer func([]byte) []byte) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if a := answer(b[:n]); a != nil {
				_, _ = c.WriteTo(a, from)
			}
		}
	}()
	return c.LocalAddr().String()
}

func TestUDP(t *testing.T) {
	p := newProber(t, nil)
	var got atomic.Value
	echo := answering(t, func(b []byte) []byte { got.Store(string(b)); return b })
	mute := answering(t, func([]byte) []byte { return nil })
	n := 0
	third := answering(t, func(b []byte) []byte {
		if n++; n%3 == 0 {
			return b
		}
		return nil
	})
	expect(t, check(t, p, echo, "udp send=0x0aff require_reply"), true, "answered")
	if got.Load() != "\x0a\xff" {
		t.Errorf("it got %q", got.Load())
	}
	expect(t, check(t, p, mute, "udp send=ping require_reply timeout=300ms"), false, "no answer in 300ms")
	expect(t, check(t, p, mute, "udp send=ping timeout=400ms"), true, "no ICMP error")
	expect(t, check(t, p, third, "udp send=ping require_reply timeout=800ms"), true, "answered")
	expect(t, check(t, p, closedPort(t, "udp"), "udp send=ping"), false, "refused")
}

func TestDNS(t *testing.T) {
	p := newProber(t, nil)
	answer := func(change func(*dnsmessage.Message)) string {
		return answering(t, func(b []byte) []byte {
			var m dnsmessage.Message
			if err := m.Unpack(b); err != nil {
				return nil
			}
			m.Response = true
			change(&m)
			packed, err := m.Pack()
			if err != nil {
				panic(err)
			}
			return packed
		})
	}
	var question atomic.Value
	good := answer(func(m *dnsmessage.Message) { question.Store(m.Questions[0]) })
	expect(t, check(t, p, good, "dns name=example.org type=AAAA"), true, "answered")
	if q := question.Load().(dnsmessage.Question); q.Name.String() != "example.org." || q.Type != dnsmessage.TypeAAAA {
		t.Errorf("the question is %v", q)
	}
	expect(t, check(t, p, answer(func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeServerFailure }), "dns"),
		false, "RCodeServerFailure")
	expect(t, check(t, p, answer(func(m *dnsmessage.Message) { m.ID++ }), "dns timeout=200ms"), false,
		"no answer in 200ms")
	expect(t, check(t, p, answer(func(m *dnsmessage.Message) {
		m.RCode, m.Questions = dnsmessage.RCodeFormatError, nil
	}), "dns"), false, "RCodeFormatError")
	mute := answering(t, func([]byte) []byte { return nil })
	expect(t, check(t, p, mute, "dns timeout=200ms"), false, "no answer in 200ms")
}

// TestDNSAmongOthers: datagrams that do not answer the query change nothing, whether its answer
// follows them or not (RFC 5452, section 9.1).
func TestDNSAmongOthers(t *testing.T) {
	p := newProber(t, nil)
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var answers atomic.Bool
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if err := query.Unpack(b[:n]); err != nil {
				panic(err)
			}
			send := func(change func(*dnsmessage.Message)) {
				m := query
				m.Response, m.Questions = true, slices.Clone(m.Questions)
				change(&m)
				packed, err := m.Pack()
				if err != nil {
					panic(err)
				}
				_, _ = c.WriteTo(packed, from)
			}
			_, _ = c.WriteTo([]byte("short"), from)
			send(func(m *dnsmessage.Message) { m.Response = false })
			send(func(m *dnsmessage.Message) { m.ID++; m.RCode = dnsmessage.RCodeRefused })
			send(func(m *dnsmessage.Message) {
				m.Questions[0].Type, m.RCode = dnsmessage.TypeTXT, dnsmessage.RCodeRefused
			})
			send(func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("example.net.") })
			send(func(m *dnsmessage.Message) { m.Questions = nil })
			if answers.Load() {
				send(func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("Example.ORG.") })
			}
		}
	}()
	const ask = "dns name=example.org timeout=400ms"
	expect(t, check(t, p, c.LocalAddr().String(), ask), false, "no answer in 400ms")
	answers.Store(true)
	expect(t, check(t, p, c.LocalAddr().String(), ask), true, "answered")
}
