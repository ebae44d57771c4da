package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/test/bed/certs"
)

// authority is a certs.Authority of a test.
type authority struct{ *certs.Authority }

func newAuthority(t *testing.T) authority {
	t.Helper()
	a, err := certs.New()
	if err != nil {
		t.Fatal(err)
	}
	return authority{a}
}

// write writes a certificate that the authority signs, its key, and the authorities to trust.
func (a authority) write(t *testing.T, f Files, c *x509.Certificate, trusted ...authority) {
	t.Helper()
	var list []*certs.Authority
	for _, a := range trusted {
		list = append(list, a.Authority)
	}
	if err := a.WriteSigned(filepath.Dir(f.Certificate), c, list...); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func filesIn(dir string) Files {
	return Files{filepath.Join(dir, certs.CertFile), filepath.Join(dir, certs.KeyFile),
		filepath.Join(dir, certs.CAFile)}
}

// member is a gateway of a test: gw-b listens, gw-a and gw-c dial it.
type member struct {
	*Transport
	Peer
	files Files

	mu      sync.Mutex
	refused []string
}

var addresses = map[string]string{"gw-a": "127.0.0.1:0", "gw-b": "127.0.0.2:0", "gw-c": "127.0.0.3:0"}

// start makes a member whose files have been written.
func start(t *testing.T, name string, f Files) *member {
	t.Helper()
	m := &member{files: f}
	var others []Peer
	for n, a := range addresses {
		if p := (Peer{n, netip.MustParseAddrPort(a)}); n == name {
			m.Peer = p
		} else {
			others = append(others, p)
		}
	}
	var err error
	m.Transport, err = New(Config{Self: m.Peer, Peers: others, Files: f, Refused: func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.refused = append(m.refused, err.Error())
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// end is an end of a stream whose calls wait.
type end struct {
	*Stream
	t *testing.T
}

const patience = 20 * time.Second

func (e end) until(ready func() bool) {
	for deadline := time.Now().Add(patience); !ready(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			e.t.Errorf("%s: nothing happens", e.name)
			return
		}
	}
}

func (e end) Send(frame []byte) error {
	e.until(e.Ready)
	return e.Stream.Send(frame)
}

func (e end) Receive() (frame []byte, err error) {
	e.until(func() bool {
		frame, err = e.Stream.Receive()
		return frame != nil || err != nil
	})
	return frame, err
}

// good makes a member with a good certificate.
func good(t *testing.T, name string, a authority) *member {
	t.Helper()
	f := filesIn(t.TempDir())
	a.write(t, f, certs.Template(name), a)
	return start(t, name, f)
}

// serve starts the listener of a member, and stops it when the test ends. A stream ends with its
// handle.
func (m *member) serve(t *testing.T, handle func(Peer, end) error) {
	t.Helper()
	m.listen(t, func(from Peer, s *Stream) error {
		s.End(handle(from, end{s, t}))
		return nil
	})
}

func (m *member) listen(t *testing.T, handle func(Peer, *Stream) error) {
	t.Helper()
	l, err := net.Listen("tcp", m.Address.String())
	if err != nil {
		t.Fatal(err)
	}
	m.Address = netip.MustParseAddrPort(l.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx, l, handle) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returns %v", err)
		}
	})
}

// waitRefused waits for a refusal with a text.
func (m *member) waitRefused(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m.mu.Lock()
		all := strings.Join(m.refused, "\n")
		m.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no refusal has %q:\n%s", text, all)
		}
	}
}

// echo returns each frame. After a frame "no" it returns an error.
func echo(_ Peer, s end) error {
	for {
		f, err := s.Receive()
		if err != nil {
			return nil //nolint:nilerr // the dialer has ended the stream
		}
		if string(f) == "no" {
			return errors.New("wrong version")
		}
		if err := s.Send(f); err != nil {
			return err
		}
	}
}

// try opens a stream and passes a frame both ways.
func try(t *testing.T, from, to *member) (s end, err error) {
	t.Helper()
	if s, err = from.dial(t, to); err != nil {
		return s, err
	}
	t.Cleanup(func() { s.End(nil) })
	if err := s.Send([]byte("hello")); err != nil {
		return s, err
	}
	f, err := s.Receive()
	if err == nil && string(f) != "hello" {
		t.Errorf("%q came back", f)
	}
	return s, err
}

func (m *member) dial(t *testing.T, to *member) (end, error) {
	s, err := m.Dial(t.Context(), to.Peer)
	return end{s, t}, err
}

func TestFrames(t *testing.T) {
	a := newAuthority(t)
	b, from := good(t, "gw-b", a), make(chan Peer, 1)
	b.serve(t, func(p Peer, s end) error { from <- p; return echo(p, s) })
	s, err := try(t, good(t, "gw-a", a), b)
	if err != nil {
		t.Fatal(err)
	}
	if p := <-from; p.Name != "gw-a" {
		t.Errorf("the stream is of %q", p.Name)
	}
	for _, n := range []int{1, 5, wire.MaxFrame, 2} {
		f := bytes.Repeat([]byte{byte(n)}, n)
		if err := s.Send(f); err != nil {
			t.Fatal(err)
		}
		clear(f) // the stream must not use it any more
		if got, err := s.Receive(); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(n)}, n)) {
			t.Fatalf("%d bytes, %v, want %d", len(got), err, n)
		}
	}
	if err := s.Send([]byte("no")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(); err == nil || err.Error() != "gw-b refuses the stream: wrong version" {
		t.Errorf("error %v", err)
	}
}

// TestLongFrame: a frame that is too long ends the stream, at either end.
func TestLongFrame(t *testing.T) {
	a, long := newAuthority(t), make([]byte, wire.MaxFrame+1)
	for _, listeningSends := range []bool{false, true} {
		b, received := good(t, "gw-b", a), make(chan error, 1)
		b.serve(t, func(_ Peer, s end) error {
			_, err := s.Receive()
			if err != nil {
				return err
			}
			if listeningSends {
				_ = s.Send(long) // fails if the other end ends the stream before it has all
				return nil
			}
			_, err = s.Receive()
			received <- err
			return err
		})
		s, err := good(t, "gw-a", a).dial(t, b)
		if err != nil {
			t.Fatal(err)
		}
		defer s.End(nil)
		if err := s.Send([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if listeningSends {
			_, err = s.Receive()
		} else {
			_ = s.Send(long)
			err = <-received
		}
		if err == nil {
			t.Errorf("listening end sends %t: a frame of MaxFrame+1 bytes is received", listeningSends)
		}
	}
}

// TestCertificates: each is refused by the end that verifies it, and no handler runs.
func TestCertificates(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	expired, early, clientOnly := certs.Template("gw-a"), certs.Template("gw-a"), certs.Template("gw-a")
	expired.NotAfter = time.Now().Add(-time.Minute)
	early.NotBefore = time.Now().Add(time.Minute)
	clientOnly.ExtKeyUsage = clientOnly.ExtKeyUsage[:1]
	expiredB := certs.Template("gw-b")
	expiredB.NotAfter = expired.NotAfter
	for _, c := range []struct {
		name               string
		client, server     *x509.Certificate
		clientBy, serverBy authority
		refusal            string // by the server; empty if the client refuses
		message            string // of the client
	}{
		{"expired", expired, certs.Template("gw-b"), a, a, "certificate has expired", "stream with gw-b: "},
		{"not valid yet", early, certs.Template("gw-b"), a, a, "not yet valid", "stream with gw-b: "},
		{"foreign", certs.Template("gw-a"), certs.Template("gw-b"), foreign, a, "unknown authority",
			"stream with gw-b: "},
		{"no member", certs.Template("gw-x"), certs.Template("gw-b"), a, a,
			"the certificate is of gw-x, which is no member", "stream with gw-b: "},
		{"several members", certs.Template("gw-a", "gw-c"), certs.Template("gw-b"), a, a, "each needs one of its own",
			"stream with gw-b: "},
		{"all members", certs.Template("*"), certs.Template("gw-b"), a, a, "which is no member", "stream with gw-b: "},
		{"not for clients", clientOnly, certs.Template("gw-b"), a, a, "incompatible key usage", "stream with gw-b: "},
		{"server expired", certs.Template("gw-a"), expiredB, a, a, "", "certificate has expired"},
		{"server foreign", certs.Template("gw-a"), certs.Template("gw-b"), a, foreign, "", "unknown authority"},
		{"server is another member", certs.Template("gw-a"), certs.Template("gw-c"), a, a, "",
			"certificate is valid for gw-c, not gw-b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, g := filesIn(t.TempDir()), filesIn(t.TempDir())
			c.clientBy.write(t, f, c.client, a)
			c.serverBy.write(t, g, c.server, a)
			b := start(t, "gw-b", g)
			b.serve(t, func(Peer, end) error { t.Error("a stream was accepted"); return nil })
			if _, err := try(t, start(t, "gw-a", f), b); err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("the client's error is %v, want %q", err, c.message)
			}
			b.waitRefused(t, c.refusal)
		})
	}
}

// TestSharedAuthority: gateways that have the key of an authority make their own certificates, by
// which each is known, and follow a change of the files. One that may not sign is an error.
func TestSharedAuthority(t *testing.T) {
	root, foreign := newAuthority(t), newAuthority(t)
	authority := func() *x509.Certificate {
		c := certs.Template("group")
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		return c
	}
	f := filesIn(t.TempDir())
	root.write(t, f, authority(), root)
	b, from := start(t, "gw-b", f), make(chan Peer, 8)
	b.serve(t, func(p Peer, s end) error { from <- p; return echo(p, s) })
	for range 2 {
		for _, name := range []string{"gw-a", "gw-c"} {
			once(t, start(t, name, f), b)
			if p := <-from; p.Name != name {
				t.Errorf("the stream of %s is of %q", name, p.Name)
			}
		}
		root.write(t, f, authority(), root) // renewed
	}
	other := filesIn(t.TempDir())
	foreign.write(t, other, authority(), root)
	if _, err := try(t, start(t, "gw-a", other), b); err == nil {
		t.Error("a certificate of another authority is accepted")
	}
	b.waitRefused(t, "unknown authority")
	old := authority()
	old.NotAfter = time.Now().Add(-time.Minute)
	root.write(t, other, old, root)
	if _, err := try(t, start(t, "gw-a", other), b); err == nil {
		t.Error("a certificate of an authority that has expired is accepted")
	}
	b.waitRefused(t, "certificate has expired")
}

// TestBeforeTLS: a connection that does not begin TLS 1.3 with a certificate reaches nothing.
func TestBeforeTLS(t *testing.T) {
	a := newAuthority(t)
	b := good(t, "gw-b", a)
	var reached atomic.Bool
	b.serve(t, func(Peer, end) error { reached.Store(true); return nil })
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	signed, key, err := a.Sign(certs.Template("gw-a"))
	if err != nil {
		t.Fatal(err)
	}
	own := []tls.Certificate{{Certificate: [][]byte{signed.Raw}, PrivateKey: key}}
	for _, c := range []struct {
		name string
		with *tls.Config // nil: no TLS
		want string
	}{
		{"plain HTTP/2", nil, "first record does not look like a TLS handshake"},
		{"no certificate", &tls.Config{RootCAs: pool}, "client didn't provide a certificate"},
		{"TLS 1.2", &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12, Certificates: own},
			"client offered only unsupported versions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
			conn, err := d.Dial("tcp", b.Address.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if c.with != nil {
				c.with.ServerName, c.with.NextProtos = "gw-b", []string{"h2"}
				conn = tls.Client(conn, c.with)
			}
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			for err == nil { // an alert, then the end
				_, err = conn.Read(make([]byte, 100))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is open")
			}
			b.waitRefused(t, c.want)
		})
	}
	if reached.Load() {
		t.Error("a stream was accepted")
	}
}

// TestAdmission: connections from other addresses, and too many from one, are closed at once. A
// connection that is closed makes room.
func TestAdmission(t *testing.T) {
	a := newAuthority(t)
	b := good(t, "gw-b", a)
	b.serve(t, echo)
	open := func(from byte) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}
		c, err := d.Dial("tcp", b.Address.String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open(9)
	defer c.Close()
	b.waitRefused(t, "127.0.0.9 is not the address of a member")
	var silent []net.Conn
	for range perPeer {
		silent = append(silent, open(1))
	}
	defer open(1).Close()
	b.waitRefused(t, "127.0.0.1 has too many connections")
	if _, err := try(t, good(t, "gw-c", a), b); err != nil {
		t.Errorf("another member is refused: %v", err)
	}
	for _, s := range silent {
		_ = s.Close()
	}
	once(t, good(t, "gw-a", a), b)
}

// exhausted is a listener of a process without a free descriptor.
type exhausted struct{ net.Listener }

func (exhausted) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// TestListenAgain: after a connection could not be accepted, the address can be listened on again.
func TestListenAgain(t *testing.T) {
	b := good(t, "gw-b", newAuthority(t))
	l, err := net.Listen("tcp", b.Address.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(t.Context(), exhausted{l}, nil); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("Serve: %v", err)
	}
	again, err := net.Listen("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// once opens a stream, passes a frame both ways and closes it. It tries again while the server has
// not closed earlier connections.
func once(t *testing.T, from, to *member) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := from.dial(t, to)
		if err == nil {
			if err = s.Send([]byte("x")); err == nil {
				_, err = s.Receive()
			}
			s.End(nil)
		}
		if err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestRotation: new files are used without a restart, and streams from before go on. A key that
// does not belong to the certificate is not used.
func TestRotation(t *testing.T) {
	a, next := newAuthority(t), newAuthority(t)
	from, b := good(t, "gw-a", a), good(t, "gw-b", a)
	b.serve(t, echo)
	before, err := try(t, from, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{from, b} { // first trust both, then change the certificates
		a.write(t, m.files, certs.Template(m.Name), a, next)
	}
	for _, m := range []*member{from, b} {
		next.write(t, m.files, certs.Template(m.Name), a, next)
		once(t, from, b)
	}
	for _, m := range []*member{from, b} {
		next.write(t, m.files, certs.Template(m.Name), next)
	}
	once(t, from, b)
	removed := filesIn(t.TempDir())
	a.write(t, removed, certs.Template("gw-a"), a, next)
	if _, err := try(t, start(t, "gw-a", removed), b); err == nil {
		t.Error("a certificate of the authority that was removed is accepted")
	}
	b.waitRefused(t, "unknown authority")
	key, err := os.ReadFile(from.files.Key)
	if err != nil {
		t.Fatal(err)
	}
	next.write(t, b.files, certs.Template("gw-b"), next)
	put(t, b.files.Key, key)
	once(t, from, b)
	b.waitRefused(t, "the certificate from before is used")
	if err := before.Send([]byte("x")); err != nil {
		t.Error(err)
	}
	if f, err := before.Receive(); err != nil || string(f) != "x" {
		t.Errorf("the first stream returns %q, %v", f, err)
	}
}

// TestStopped: a gateway that does not read stops its own stream only, after a bounded number of
// bytes.
func TestStopped(t *testing.T) {
	a := newAuthority(t)
	b, stop := good(t, "gw-b", a), make(chan struct{})
	defer close(stop)
	b.serve(t, func(p Peer, s end) error {
		if p.Name == "gw-a" {
			<-stop
			return nil
		}
		return echo(p, s)
	})
	s, err := good(t, "gw-a", a).dial(t, b)
	if err != nil {
		t.Fatal(err)
	}
	defer s.End(nil)
	sent, frame := 0, make([]byte, 1<<16)
	for last := -1; sent != last; time.Sleep(200 * time.Millisecond) {
		for last = sent; s.Ready(); sent += len(frame) {
			if err := s.Stream.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
		if sent > mostUnread {
			t.Fatalf("%d bytes were sent to a gateway that reads nothing", sent)
		}
	}
	t.Logf("%d bytes were sent", sent)
	if _, err := try(t, good(t, "gw-c", a), b); err != nil {
		t.Errorf("another member's stream: %v", err)
	}
}

// mostUnread is what the sockets of both ends hold at most (net.ipv4.tcp_wmem and tcp_rmem).
const mostUnread = 32 << 20
