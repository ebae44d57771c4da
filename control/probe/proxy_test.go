package probe

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
)

const localHeader = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"

// answerDatagrams starts a server that answers one kind of datagram, and returns its address.
func answerDatagrams(t *testing.T, question string) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 100); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) == question {
				_, _ = c.WriteTo(b[:n], from)
			}
		}
	}()
	return c.LocalAddr().String()
}

// proxyListener takes connections that begin with a PROXY header of the command LOCAL, and closes
// others.
type proxyListener struct{ net.Listener }

func (l proxyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		r, got := bufio.NewReader(c), make([]byte, len(localHeader))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != localHeader {
			c.Close()
			continue
		}
		_ = c.SetReadDeadline(time.Time{})
		return &proxiedConn{c, r}, nil
	}
}

type proxiedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *proxiedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// TestProxyHeader: a check of an endpoint that expects the PROXY protocol begins with a header,
// also before TLS, and a check of another endpoint does not.
func TestProxyHeader(t *testing.T) {
	listen := func(start func(*httptest.Server)) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		s.Listener = proxyListener{s.Listener}
		s.EnableHTTP2 = true
		start(s)
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	plain := listen((*httptest.Server).Start)
	secured := listen(func(s *httptest.Server) { s.TLS = &tls.Config{}; s.StartTLS() })
	datagrams := answerDatagrams(t, localHeader+"x")
	p := newProber(t, nil)
	for _, tt := range []struct {
		name, to, check string
		header, ok      bool
	}{
		{"http", plain, "http timeout=2s", true, true},
		{"https", secured, "https timeout=2s", true, true},
		{"tcp sends nothing", plain, "tcp", true, true},
		{"http without a header", plain, "http timeout=2s", false, false},
		{"udp", datagrams, "udp send=0x78 require_reply timeout=2s", true, true},
		{"udp without a header", datagrams, "udp send=0x78 require_reply timeout=1s", false, false},
	} {
		list, err := objects.ParseChecks(tt.check)
		if err != nil {
			t.Fatal(err)
		}
		c := list[0].Check
		c.ProxyHeader = tt.header
		p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(tt.to), Check: c})
		if r := (<-p.Results())[0].Result; r.OK != tt.ok {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}
