//go:build root

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestNodeTrafficIsTheNodes: Services with frontends at an address of the gateway, at the port of a
// connection that the gateway itself has, and at that of a listener of it. Neither is taken; a port
// without a socket is served. As an external IP the address is not served at all.
func TestNodeTrafficIsTheNodes(t *testing.T) {
	t.Parallel()
	const own, listening, free, external = 40000, 179, 8081, 8082
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true})
	client, gateway := l.Clients[0], l.Gateway
	backend := l.Backends[0]
	for _, a := range []netip.Addr{gateway.Addr4(), gateway.Addr6()} {
		server := echoes(t, client, netip.AddrPortFrom(sameFamily(client, a), 6443))
		conn := dialFrom(t, gateway, netip.AddrPortFrom(a, own), server)
		echo(t, conn, "before")
		listener, err := gateway.Listen("tcp", netip.AddrPortFrom(a, listening).String())
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go greet(listener)
		defer func() { echo(t, conn, "after all Services are gone") }()
		defer func() {
			for _, name := range []string{"own", "listening", "free", "external"} {
				_ = l.gate.Remove(name) // the other family's turn has removed it
			}
			l.applied()
		}()

		service := func(name string, port int32) launch.Service {
			return launch.Service{Name: name, Port: port, VIPs: []string{a.String()}, Endpoints: endpoints(backend)}
		}
		refused := service("external", external)
		refused.VIPs, refused.ExternalIPs = nil, []string{a.String()}
		l.apply(service("own", own), service("listening", listening), service("free", free), refused)
		l.applied()

		echo(t, conn, "with a frontend at its port")
		if got := firstLine(t, client, netip.AddrPortFrom(a, listening), ""); got != "the node" {
			t.Errorf("%v: the node's listener was not reached: %q", a, got)
		}
		if got := firstLine(t, client, netip.AddrPortFrom(a, free), "GET / HTTP/1.0\r\n\r\n"); got == "" {
			t.Errorf("%v: a frontend at a port without a socket is not served", a)
		}
		if got := firstLine(t, client, netip.AddrPortFrom(a, external), "GET / HTTP/1.0\r\n\r\n"); got != "" {
			t.Errorf("%v: an external IP that is the node's is served: %q", a, got)
		}
		echo(t, conn, "after others' packets")
		fragmentsReachTheNode(t, l, netip.AddrPortFrom(a, own))
	}
}

// fragmentsReachTheNode sends datagrams in fragments, in two orders, to a UDP socket of the gateway
// at the address of a frontend.
func fragmentsReachTheNode(t *testing.T, l *lab, at netip.AddrPort) {
	t.Helper()
	client := l.Clients[0]
	name := fmt.Sprintf("udp-%d", at.Port())
	l.apply(launch.Service{Name: name, UDP: true, Port: int32(at.Port()), VIPs: []string{at.Addr().String()},
		Endpoints: endpoints(l.Backends[0])})
	l.applied()
	conn, err := l.Gateway.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := openWire(t, client, l.Gateway.Interfaces[0].MAC)
	from := netip.AddrPortFrom(sameFamily(client, at.Addr()), 53)
	for i, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
		payload := fmt.Sprintf("%06d", i) + strings.Repeat("x", 4090)
		parts := headertest.Split(headertest.UDP(from.String(), at.String(), payload).Bytes(), 1400, uint32(9000+i))
		for _, n := range order {
			if err := w.send(parts[n]); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 8192)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, _, err := conn.ReadFrom(got); err != nil || string(got[:n]) != payload {
			t.Errorf("%v: a datagram in fragments, order %v: %d bytes, %v", at, order, n, err)
		}
	}
	if err := l.gate.Remove(name); err != nil {
		t.Fatal(err)
	}
	l.applied()
}

// TestLocalPortRange: a node port that net.ipv4.ip_local_port_range reaches while the gateway runs
// takes no packet of the node's listener at that port any more.
func TestLocalPortRange(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 1}, small: true})
	at := netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort)
	listener, err := l.Gateway.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go greet(listener)
	ask := func() string { return firstLine(t, l.Clients[0], at, "GET / HTTP/1.0\r\n\r\n") }
	if got := ask(); got == "the node" || got == "" {
		t.Fatalf("the node port is not served: %q", got)
	}
	if err := l.Gateway.SetSysctl("net/ipv4/ip_local_port_range", "30000 60999"); err != nil {
		t.Fatal(err)
	}
	l.eventually(10*time.Second, "the node's listener is reached", func() bool { return ask() == "the node" })
}

func sameFamily(h *topo.Host, a netip.Addr) netip.Addr {
	if a.Is4() {
		return h.Addr4()
	}
	return h.Addr6()
}

// echoes starts a server on a host that sends back what it reads, until the test ends.
func echoes(t *testing.T, h *topo.Host, at netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := h.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return at
}

// greet answers each connection with one line.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "the node\n")
		conn.Close()
	}
}

// dialFrom connects a host from a local port.
func dialFrom(t *testing.T, h *topo.Host, from, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	err := h.Run(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: 5 * time.Second}
		conn, err = d.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func echo(t *testing.T, conn net.Conn, when string) {
	t.Helper()
	got := make([]byte, 4)
	err := conn.SetDeadline(time.Now().Add(5 * time.Second))
	if err == nil {
		_, err = io.WriteString(conn, "ping")
	}
	if err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err != nil || string(got) != "ping" {
		t.Errorf("the gateway's own connection from %v, %s: %q, %v", conn.LocalAddr(), when, got, err)
	}
}

// firstLine is what a server answers to a request; "" if it cannot be reached.
func firstLine(t *testing.T, from *topo.Host, to netip.AddrPort, request string) string {
	t.Helper()
	conn, err := from.Dial(t.Context(), "tcp", to.String())
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(conn, request)
	s := bufio.NewScanner(conn)
	s.Scan()
	return s.Text()
}
