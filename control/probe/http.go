package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"sluice.dev/sluice/control/objects"
)

// serverName returns a host without its port.
func serverName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// askHTTP makes a request and judges its status code. Redirects are not followed: the transport
// asks the endpoint and nobody else.
func askHTTP(
	ctx context.Context, t *http.Transport, scheme string, to netip.AddrPort, c *objects.Check,
) (string, error) {
	if scheme == "https" {
		// Nobody knows a name that the certificate of an endpoint would have to have.
		t = t.Clone()
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, ServerName: serverName(c.Host)}
		defer t.CloseIdleConnections()
	}
	q, err := http.NewRequestWithContext(ctx, c.Method, scheme+"://"+to.String()+c.Path, nil)
	if err != nil {
		return "", err
	}
	q.Header.Set("User-Agent", "sluice-health-check")
	if c.Host != "" {
		q.Host = c.Host
	}
	a, err := t.RoundTrip(q)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	const body = 4096 // bytes that are read, as some servers log a client that ends before
	_, _ = io.CopyN(io.Discard, a.Body, body)
	if a.StatusCode < int(c.StatusMin) || a.StatusCode > int(c.StatusMax) {
		return "", fmt.Errorf("status %d", a.StatusCode)
	}
	return fmt.Sprintf("status %d", a.StatusCode), nil
}
