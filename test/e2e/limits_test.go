//go:build root

package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// Refused SYNs are repeated after one and three seconds (RFC 6298): a connection that is to be
// refused is given less time, and one that is to succeed more, as the connection whose place it
// takes may still be closing.
const (
	oneSYN   = 400 * time.Millisecond
	someSYNs = 5 * time.Second
)

// opens makes a connection of a client that stands: it sends and receives.
func (l *lab) opens(h *topo.Host, vip string, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, machine.Slower(patience))
	defer cancel()
	conn, err := h.Dial(ctx, "tcp", at(vip, webPort).String())
	if err != nil {
		return nil, err
	}
	l.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(machine.Slower(10 * time.Second)))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return nil, err
	}
	_, err = conn.Read(make([]byte, 1<<16))
	return conn, err
}

func (l *lab) mustOpen(h *topo.Host, vip string) net.Conn {
	l.t.Helper()
	conn, err := l.opens(h, vip, someSYNs)
	if err != nil {
		l.t.Fatalf("%s to %s: %v", h.Name, vip, err)
	}
	return conn
}

// refuses checks that a client's connection is dropped for that reason, and for no other.
func (l *lab) refuses(h *topo.Host, vip string, why reason.Drop) {
	l.t.Helper()
	before := l.counted(why.String())
	if _, err := l.opens(h, vip, oneSYN); err == nil {
		l.t.Errorf("%s got one more connection to %s", h.Name, vip)
	}
	if got := l.counted(why.String()); got == before {
		l.t.Errorf("%s to %s: no packet was dropped as %v", h.Name, vip, why)
	}
}

// TestConnectionLimit: a client has as many connections as one source may have, and the next is
// refused by name; another client's succeed, and one that ends makes room for one.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	const limit = 3
	l := newLab(t, labConfig{
		Config: topo.Config{Queues: 2, Clients: 2}, small: true,
		options: "limits: {connectionsPerSource: 3}\n",
	})
	for _, vip := range []string{vip4, vip6} {
		var conns []net.Conn
		for range limit {
			conns = append(conns, l.mustOpen(l.Clients[0], vip))
		}
		l.refuses(l.Clients[0], vip, reason.LimitSourceConnections)
		l.explainsLimit(vip)
		if vip == vip4 {
			l.mustOpen(l.Clients[1], vip)
		} else { // both clients are of one /64, which is one source
			l.refuses(l.Clients[1], vip, reason.LimitSourceConnections)
		}
		conns[0].Close()
		l.mustOpen(l.Clients[0], vip)
		l.refuses(l.Clients[0], vip, reason.LimitSourceConnections)
	}
	list, err := l.gate.Client.Services(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		v := &list[i]
		if want := uint32(limit + 1 + limit); v.Name == "web" &&
			(v.Limits == nil || v.Limits.SourceConnections != limit || v.Limits.Open != want) {
			t.Errorf("service web has limits %+v, want %d open", v.Limits, want)
		}
	}
}

// explainsLimit checks that the answer about one more connection names the limit and a remedy.
func (l *lab) explainsLimit(vip string) {
	l.t.Helper()
	from := l.Clients[0].Addr4()
	if strings.Contains(vip, ":") {
		from = l.Clients[0].Addr6()
	}
	v, err := l.gate.Client.Explain(l.ctx, &status.ExplainQuery{
		From: netip.AddrPortFrom(from, 50000), To: at(vip, webPort), Protocol: "TCP",
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if v.Reason != reason.LimitSourceConnections.String() ||
		!strings.Contains(v.Advice, "limit-connections-per-source") {
		l.t.Errorf("explained as %q, advice %q", v.Reason, v.Advice)
	}
}

// TestRateLimit: a client opens as many connections as one source may open in a second, and the
// next is refused by name; another client's succeeds, and so does the first one's a little later.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{
		Config: topo.Config{Queues: 2, Clients: 2}, small: true,
		options: "limits: {newConnectionsPerSource: 2}\n",
	})
	refused := l.counted(reason.LimitSourceRate.String())
	opened, began := 0, time.Now()
	for range 6 {
		// A refused SYN is repeated, so each of these takes at most the time of a token or two.
		if _, err := l.opens(l.Clients[0], vip4, oneSYN); err == nil {
			opened++
		}
	}
	took := time.Since(began)
	if most := 2 + int(2*took.Seconds()) + 1; opened > most {
		t.Errorf("%d connections in %v, at most %d are allowed", opened, took, most)
	}
	if l.counted(reason.LimitSourceRate.String()) == refused {
		t.Error("no packet was dropped as limit_source_rate")
	}
	l.mustOpen(l.Clients[1], vip4)
	time.Sleep(time.Second)
	l.mustOpen(l.Clients[0], vip4)
}
