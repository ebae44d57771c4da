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

// proxyListener takes connections that begin with a PROXY header of the command LOCAL, and closes
// others.
type proxyListener struct{ net.Listener }

func (l proxyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		const local = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		r, got := bufio.NewReader(c), make([]byte, len(local))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != local {
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
	p := newProber(t, nil)
	for _, tt := range []struct {
		name, to, check string
		header, ok      bool
	}{
		{"http", plain, "http timeout=2s", true, true},
		{"https", secured, "https timeout=2s", true, true},
		{"tcp sends nothing", plain, "tcp", true, true},
		{"http without a header", plain, "http timeout=2s", false, false},
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
