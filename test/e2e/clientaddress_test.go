//go:build root

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	echoPort, mailPort = 8100, 8101 // of the endpoints
	datagramPort       = 8102
	echoVIPPort        = 7
	mailVIPPort        = 25
	greeting           = "220 "
)

// proxyServer is a server that reads PROXY headers. It counts connections that do not begin with
// one.
type proxyServer struct {
	mu        sync.Mutex
	malformed []string
	checks    int // connections with a header of the command LOCAL
}

// serveProxied starts a server on a host that expects a header and then sends the client's address
// back. A mail server then sends it at once, an echo server with the first byte of the client; both
// then return what the client sends.
func serveProxied(t *testing.T, h *topo.Host, port uint16, mail bool) *proxyServer {
	t.Helper()
	s := &proxyServer{}
	ln, err := h.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(c, mail)
		}
	}()
	return s
}

// serveDatagrams starts a server on a host that answers each datagram with the address in its
// header and with its payload.
func serveDatagrams(t *testing.T, h *topo.Host) {
	t.Helper()
	c, err := h.ListenPacket("udp", fmt.Sprintf("[::]:%d", datagramPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 2048); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			r := bytes.NewReader(b[:n])
			client, err := readHeader(r)
			answer := fmt.Appendf(nil, "%v %v ", client, err)
			_, _ = c.WriteTo(append(answer, b[n-r.Len():n]...), from)
		}
	}()
}

// askDatagrams sends datagrams of several lengths to a VIP, and compares the answers.
func (l *lab) askDatagrams(vip string) error {
	c, err := l.Clients[0].Dial(l.ctx, "udp", at(vip, datagramPort).String())
	if err != nil {
		return err
	}
	defer c.Close()
	for _, size := range []int{0, 1, 512, 1232} {
		want := fmt.Sprintf("%v <nil> %s", c.LocalAddr(), strings.Repeat("q", size))
		got := make([]byte, 2048)
		for attempt := 0; ; attempt++ {
			if _, err := c.Write([]byte(want[len(want)-size:])); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
			n, err := c.Read(got)
			if err != nil && attempt < 3 {
				continue
			}
			if string(got[:n]) != want || err != nil {
				return fmt.Errorf("%d bytes: %.60q, %w", size, got[:n], err)
			}
			break
		}
	}
	return nil
}

func (s *proxyServer) serve(c net.Conn, mail bool) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Minute))
	client, err := readHeader(c)
	if errors.Is(err, errLocalCommand) {
		s.mu.Lock()
		s.checks++
		s.mu.Unlock()
		_, _ = io.WriteString(c, "HTTP/1.0 204 No Content\r\n\r\n")
		return
	}
	if errors.Is(err, errNoByte) {
		return
	}
	if err != nil {
		s.mu.Lock()
		s.malformed = append(s.malformed, err.Error())
		s.mu.Unlock()
		return
	}
	line := []byte(greeting + client.String() + "\n")
	if !mail {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			return
		}
		line = append(line, first...)
	}
	if _, err := c.Write(line); err == nil {
		_, _ = io.Copy(c, c)
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

var (
	errLocalCommand = errors.New("the command is LOCAL")
	errNoByte       = errors.New("ended without a byte") // such as a health check that took too long
)

// readHeader reads a header of the PROXY protocol, version 2, and returns the client's address.
func readHeader(r io.Reader) (netip.AddrPort, error) {
	b := make([]byte, 16)
	switch n, err := io.ReadFull(r, b); {
	case n == 0:
		return netip.AddrPort{}, errNoByte
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("%x: %w", b[:n], err)
	}
	if !bytes.HasPrefix(b, []byte("\r\n\r\n\x00\r\nQUIT\n")) || b[12]>>4 != 2 {
		return netip.AddrPort{}, fmt.Errorf("%x is no header", b)
	}
	rest := make([]byte, binary.BigEndian.Uint16(b[14:]))
	if _, err := io.ReadFull(r, rest); err != nil {
		return netip.AddrPort{}, err
	}
	switch {
	case b[12]&15 == 0:
		return netip.AddrPort{}, errLocalCommand
	case b[13]&^3 == 0x10 && len(rest) == 12:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(rest)), binary.BigEndian.Uint16(rest[8:])), nil
	case b[13]&^3 == 0x20 && len(rest) == 36:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(rest)), binary.BigEndian.Uint16(rest[32:])), nil
	}
	return netip.AddrPort{}, fmt.Errorf("family %x with %d bytes", b[13], len(rest))
}

// talk opens a connection, sends size bytes and compares what comes back. during is called between.
func talk(l *lab, vip string, port uint16, mail bool, size int, during func()) error {
	c, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip, port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Minute))
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	want := greeting + c.LocalAddr().String() + "\n"
	var got []byte
	if mail { // the server speaks first
		got = make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil {
			return fmt.Errorf("no greeting: %w", err)
		}
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent[:size/2])
		if err == nil && during != nil {
			during()
		}
		if err == nil {
			_, err = c.Write(sent[size/2:])
		}
		if err == nil {
			err = c.(interface{ CloseWrite() error }).CloseWrite()
		}
		failed <- err
	}()
	rest, err := io.ReadAll(c)
	if err := errors.Join(err, <-failed); err != nil {
		return err
	}
	got = append(got, rest...)
	if !strings.HasPrefix(string(got), want) {
		return fmt.Errorf("the server saw %.60q, want %q", got, want)
	}
	if got = got[len(want):]; sha256.Sum256(got) != sha256.Sum256(sent) {
		return fmt.Errorf("%d of %d bytes came back", len(got), len(sent))
	}
	return nil
}

// proxyLab has servers that expect headers. The mail server speaks first. The gateway checks the
// echo server by HTTP.
func proxyLab(t *testing.T) (l *lab, servers []*proxyServer) {
	l = newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, options: handsOver})
	to := func(port int32) (list []launch.Endpoint) {
		for _, e := range endpoints(l.Backends...) {
			e.Port = port
			list = append(list, e)
		}
		return list
	}
	for _, h := range l.Backends {
		serveDatagrams(t, h)
		servers = append(servers, serveProxied(t, h, echoPort, false), serveProxied(t, h, mailPort, true))
	}
	l.apply(
		launch.Service{Name: "echo", Port: echoVIPPort, VIPs: []string{vip4, vip6}, Endpoints: to(echoPort),
			Annotations: map[string]string{"sluice.dev/proxy-protocol": "v2", checkAnnotation: "http interval=1s"}},
		launch.Service{Name: "mail", Port: mailVIPPort, VIPs: []string{vip4, vip6}, Endpoints: to(mailPort),
			Annotations: map[string]string{"service.beta.kubernetes.io/aws-load-balancer-proxy-protocol": "*"}},
		launch.Service{Name: "datagrams", Port: datagramPort, UDP: true, VIPs: []string{vip4, vip6},
			Endpoints: to(datagramPort), Annotations: map[string]string{"sluice.dev/proxy-protocol": "v2+udp"}},
	)
	l.within("the Services are served", func() bool {
		list, err := l.gate.Client.Services(l.ctx)
		n := 0
		for i := range list {
			if list[i].ProxyProtocol == "v2" {
				n++
			}
		}
		return err == nil && n == 3
	})
	return l, servers
}

// TestProxyProtocol: servers read the client's address and then its bytes, over IPv4 and IPv6, also
// a server that speaks first, also if the gateway is killed or hands over in the middle, and with
// loss. No connection begins otherwise. A Service without the annotation gets no headers.
func TestProxyProtocol(t *testing.T) {
	l, servers := proxyLab(t)
	for _, vip := range []string{vip4, vip6} {
		for _, port := range []uint16{echoVIPPort, mailVIPPort} {
			for _, size := range []int{1, 1000, 8 << 20} {
				if err := talk(l, vip, port, port == mailVIPPort, size, nil); err != nil {
					t.Errorf("%s:%d, %d bytes: %v", vip, port, size, err)
				}
			}
			for during, next := range map[string]func(){"gateway killed": l.killAndStart, "hand-over": l.takeOver} {
				if err := talk(l, vip, port, port == mailVIPPort, 1<<20, next); err != nil {
					t.Errorf("%s:%d, %s: %v", vip, port, during, err)
				}
			}
		}
	}
	for _, vip := range []string{vip4, vip6} {
		if err := l.askDatagrams(vip); err != nil {
			t.Errorf("datagrams to %s: %v", vip, err)
		}
	}
	n, most, loss := 20, 200_000, 5
	if full() {
		n, most, loss = 200, 100<<20, 1
	}
	for _, h := range l.Backends {
		silence(t, h, l.Gateway, loss)
	}
	l.talks(n, most/100, most, vip4)
	for _, h := range l.Backends {
		hear(t, h)
	}
	checks := 0
	for i, s := range servers {
		s.mu.Lock()
		if len(s.malformed) > 0 {
			t.Errorf("server %d: %v", i, s.malformed)
		}
		checks += s.checks
		s.mu.Unlock()
	}
	for _, h := range l.Backends {
		if b := l.backend("echo", h); checks == 0 || b.Health == nil || b.Health.Down {
			t.Errorf("%d checks with a header, the endpoint is %+v", checks, b.Health)
		}
	}
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort)}, Requests: 10,
		Concurrency: 1})
	if err != nil || r.Failed() > 0 {
		t.Errorf("without PROXY protocol: %v %v", err, r)
	}
	l.explainsProxy(t)
	l.handOverNoMore()
}

// talks makes connections to both servers at VIPs in turn, several at once, that carry from least
// to most bytes each way.
func (l *lab) talks(n, least, most int, vips ...string) {
	l.t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	began, all := time.Now(), 0
	for i := range n {
		size := int(float64(least) * math.Pow(float64(most)/float64(least), float64(i)/float64(n-1)))
		vip, port := vips[i%len(vips)], []uint16{echoVIPPort, mailVIPPort}[i/len(vips)%2]
		all += size
		g.Go(func() error {
			if err := talk(l, vip, port, port == mailVIPPort, size, nil); err != nil {
				l.t.Errorf("%s:%d, %d bytes: %v", vip, port, size, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	l.t.Logf("%d transfers of %d to %d bytes, %d in all each way, took %v", n, least, most, all,
		time.Since(began).Round(time.Second))
}

// TestNetemProxyProtocol: wires that lose, double and reorder packets, in both directions on both
// sides of the gateway. Servers read the client's address and all of its bytes, and send them back.
func TestNetemProxyProtocol(t *testing.T) {
	machine.Need(t, machine.Netem)
	l, servers := proxyLab(t)
	for _, vip := range []string{vip4, vip6} { // next hops are known from now on
		if err := talk(l, vip, echoVIPPort, false, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Impair(topo.Impairment{Loss: 1, Duplicate: 2, Reorder: 10, Delay: 2 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	most := 1 << 20
	if full() {
		most = 100 << 20
	}
	l.talks(200, most/100, most, vip4, vip6)
	lost, err := l.Repair()
	if t.Logf("the wires lost %d packets", lost); lost == 0 || err != nil {
		t.Errorf("the wires lost %d packets: %v", lost, err)
	}
	for i, s := range servers {
		s.mu.Lock()
		if len(s.malformed) > 0 {
			t.Errorf("server %d: %v", i, s.malformed)
		}
		s.mu.Unlock()
	}
	l.handOverNoMore()
}

// explainsProxy checks what explain says about a new connection.
func (l *lab) explainsProxy(t *testing.T) {
	t.Helper()
	v, err := l.gate.Client.Explain(l.ctx, &status.ExplainQuery{
		From: netip.AddrPortFrom(l.Clients[0].Addr4(), 50000), To: at(vip4, mailVIPPort), Protocol: "TCP"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range v.Steps {
		if s.Name == "proxy protocol" && strings.HasPrefix(s.Text, "v2") {
			return
		}
	}
	t.Errorf("explained as %+v", v.Steps)
}

// takeOver starts a process that takes over from the running one.
func (l *lab) takeOver() {
	if err := l.gate.LaunchNext(); err != nil {
		l.t.Error(err)
		return
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		l.t.Error(err)
	}
}

// killAndStart kills the daemon and starts it again.
func (l *lab) killAndStart() {
	if err := l.gate.Kill(); err != nil {
		l.t.Error(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		l.t.Error(err)
	}
}

// TestRouted: backends of a routed Service see the clients' addresses by policy Cluster, also of
// connections to a node port. Without a route back through the gateway clients get no answer, and
// the Service has a problem.
func TestRouted(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}})
	routed := launch.Service{Name: "keep", Port: webPort, NodePort: 30090, VIPs: []string{keepVIP4, keepVIP6},
		Endpoints: endpoints(l.Backends...), Annotations: map[string]string{"sluice.dev/forwarding": "routed"}}
	l.apply(routed)
	l.applied()
	client := l.Clients[0]
	load := func(target netip.AddrPort, requests int) *topo.Result {
		r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: requests,
			Concurrency: 4, Timeout: machine.Slower(2 * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for target, want := range map[netip.AddrPort]string{
		at(keepVIP4, webPort): client.Addr4().String(), at(keepVIP6, webPort): client.Addr6().String(),
		netip.AddrPortFrom(l.Gateway.Addr4(), 30090): client.Addr4().String(),
	} {
		if r := load(target, 200); r.Failed() > 0 || r.Clients[want] != 200 {
			t.Errorf("%v: errors %v, client addresses seen %v, want %s", target, r.Errors, r.Clients, want)
		}
	}
	l.checkLaws()

	// The answers to clients go to a next hop that does not exist.
	clients := netip.PrefixFrom(client.Addr4(), 24).Masked()
	deadHop := netip.AddrFrom4([4]byte{10, 72, 0, 250})
	for _, b := range l.Backends {
		err := errors.Join(b.Neighbour("eth0", [6]byte{2, 0, 0, 0, 0, 1}, deadHop), b.Route(clients, deadHop))
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := load(at(keepVIP4, webPort), 20); r.Failed() != 20 {
		t.Errorf("%d of 20 requests failed without a route for the answers", r.Failed())
	}
	l.within("a problem", func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && slices.ContainsFunc(st.Problems, func(p status.ProblemView) bool {
			return strings.Contains(p.Message, "do not return through this gateway")
		})
	})
}
