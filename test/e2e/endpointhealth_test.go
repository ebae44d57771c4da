//go:build root

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

const checkAnnotation = "sluice.dev/health-check"

// backend returns the IPv4 endpoint of a Service on a host.
func (l *lab) backend(service string, h *topo.Host) status.BackendView {
	l.t.Helper()
	list, err := l.gate.Client.Backends(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, b := range list {
		if b.Service == service && b.Address.Addr() == h.Addr4() {
			return b
		}
	}
	l.t.Fatalf("%s has no endpoint on %s", service, h.Name)
	return status.BackendView{}
}

// healthOf is a backend's for people.
func (l *lab) healthOf(service string, h *topo.Host) string {
	b := l.backend(service, h)
	return fmt.Sprintf("%+v, new flows %v %q", b.Health, b.NewFlows, b.Why)
}

// silence makes a host drop a share of the packets from the gateway and to it, until hear. All
// SYN-ACKs leave: a host's TCP forgets a half-open connection whose SYN-ACK its own filter drops
// for the second time (reqsk_timer_handler, net/ipv4/inet_connection_sock.c), and answers the
// client's segments with RST later. A packet lost on the way has no such effect.
func silence(t *testing.T, h, gateway *topo.Host, percent int) {
	t.Helper()
	drop := "drop"
	if percent < 100 {
		drop = fmt.Sprintf("numgen random mod 100 < %d drop", percent)
	}
	peer := gateway.Interfaces[len(gateway.Interfaces)-1].Addr4.Addr()
	nft(t, h, fmt.Sprintf(`table inet silence {
	chain in { type filter hook input priority 0; ip saddr %[1]s %[2]s; }
	chain out {
		type filter hook output priority 0; tcp flags & (syn | ack) == syn | ack accept; ip daddr %[1]s %[2]s;
	}
}`, peer, drop))
}

func hear(t *testing.T, h *topo.Host) {
	t.Helper()
	nft(t, h, "delete table inet silence")
}

// opener opens connections at a rate, each of which asks once, whether or not others are answered.
type opener struct {
	mu      sync.Mutex
	open    sync.WaitGroup
	begun   int
	slow    int // took longer than half a second
	failed  int
	longest time.Duration
}

// openAt opens connections to a target until ctx is done.
func (l *lab) openAt(ctx context.Context, target netip.AddrPort, every time.Duration) *opener {
	o := &opener{}
	o.open.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			o.open.Go(func() { o.one(l, target) })
		}
	})
	return o
}

func (o *opener) one(l *lab, target netip.AddrPort) {
	began := time.Now()
	err := l.Clients[0].Run(func() error {
		c, err := net.DialTimeout("tcp", target.String(), 15*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(began.Add(20 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, c)
		return err
	})
	took := time.Since(began)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun++
	if err != nil {
		o.failed++
	}
	if took > 500*time.Millisecond {
		o.slow++
	}
	o.longest = max(o.longest, took)
}

// TestCheckedEndpoint: a backend drops everything, without RST or ICMP. With a check each second it
// gets no new flows after 4 s; other backends serve meanwhile. When it hears again, it takes flows.
func TestCheckedEndpoint(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, damaging: true,
		options: "endpointHealth: {check: \"tcp interval=1s\"}\n"})
	out := l.Backends[1]
	l.within("every endpoint was checked", func() bool {
		for _, h := range l.Backends {
			if b := l.backend("web", h); b.Health == nil || b.Health.At.IsZero() || b.Health.Down {
				return false
			}
		}
		return true
	})
	silence(t, out, l.Gateway, 100)
	began := time.Now()
	l.within("the silent endpoint gets no new flows", func() bool { return !l.backend("web", out).NewFlows })
	took := time.Since(began)
	if took > l.bound(4*time.Second) {
		t.Errorf("it took %v, want 4s", took)
	}
	if b := l.backend("web", out); !b.Health.Down || b.Why != "down by this gateway's check" ||
		!strings.Contains(b.Health.Last, "no answer in 750ms") {
		t.Errorf("it is %s", l.healthOf("web", out))
	}
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort)}, Requests: 200,
		Concurrency: 4})
	longest := l.bound(900 * time.Millisecond).Microseconds()
	if err != nil || r.Failed() > 0 || r.Shares[out.Name] > 0 || len(r.Shares) != 2 || r.Latency.Max() > longest {
		t.Errorf("meanwhile: %v, %v, shares %v", err, r, r.Shares)
	}
	heard := time.Now()
	hear(t, out)
	l.within("it gets new flows again", func() bool { return l.backend("web", out).NewFlows })
	t.Logf("a check each second: out %v after it went silent, and %d requests to the others, %d failed; back %v after "+
		"it heard again", took.Round(10*time.Millisecond), r.Requests, r.Failed(),
		time.Since(heard).Round(10*time.Millisecond))
}

// TestFlowsOutliveTheirCheck: an endpoint that refuses its check keeps the connection that it has,
// and gets no new one.
func TestFlowsOutliveTheirCheck(t *testing.T) {
	t.Parallel()
	const port = 9100
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true})
	var listeners []net.Listener
	var list []launch.Endpoint
	for _, h := range l.Backends {
		listener, err := h.Listen("tcp", netip.AddrPortFrom(h.Addr4(), port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
			}
		}()
		listeners = append(listeners, listener)
		list = append(list, launch.Endpoint{Addr: h.Addr4(), Port: port, Node: h.Name})
	}
	echo := launch.Service{Name: "echo", Port: 7, VIPs: []string{keepVIP4}, Endpoints: list[:1],
		Annotations: map[string]string{checkAnnotation: "tcp interval=1s fall=2"}}
	l.apply(echo)
	l.applied()
	c, err := l.Clients[0].Dial(l.ctx, "tcp", at(keepVIP4, 7).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	alive := func() error {
		_ = c.SetDeadline(time.Now().Add(machine.Slower(5 * time.Second)))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	if err := alive(); err != nil {
		t.Fatal(err)
	}
	echo.Endpoints = list
	l.apply(echo)
	l.applied()
	listeners[0].Close()
	l.within("the endpoint that refuses is out", func() bool { return !l.backend("echo", l.Backends[0]).NewFlows })
	if b := l.backend("echo", l.Backends[0]); b.Health.Last != "refused" {
		t.Errorf("it is %s", l.healthOf("echo", l.Backends[0]))
	}
	if err := alive(); err != nil {
		t.Errorf("its connection: %v", err)
	}
	for range 20 {
		c, err := l.Clients[0].Dial(l.ctx, "tcp", at(keepVIP4, 7).String())
		if err != nil {
			t.Fatalf("a new connection: %v", err)
		}
		c.Close()
	}
}

// TestAllChecksFail: a check asks for a page that no endpoint has, so it fails at all of them.
// Traffic goes on to all, and the Service says so.
func TestAllChecksFail(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true})
	load := l.hammer(at(vip4, webPort), 2*time.Millisecond)
	web := l.web(l.Backends...)
	web.Annotations = map[string]string{checkAnnotation: "http path=/nothing expect=201 interval=1s fall=1"}
	l.apply(web)
	l.applied()
	l.within("all endpoints are down", func() bool {
		for _, h := range l.Backends {
			if b := l.backend("web", h); b.Health == nil || !b.Health.Down {
				return false
			}
		}
		return true
	})
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort)}, Requests: 600,
		Concurrency: 4})
	if err != nil || r.Failed() > 0 || len(r.Shares) != 3 || r.Deviation(fair(l.Backends)) > 5 {
		t.Errorf("after that: %v, %v, shares %v", err, r, r.Shares)
	}
	before := load.stop(t)
	if before.Failed() > 0 || len(before.Shares) != 3 {
		t.Errorf("meanwhile: %v, errors %v", before, before.Errors)
	}
	t.Logf("all checks fail: %d requests before and meanwhile, %d failed, shares %v; %d after, %d failed, shares %v",
		before.Requests, before.Failed(), before.Shares, r.Requests, r.Failed(), r.Shares)
	for _, h := range l.Backends {
		if b := l.backend("web", h); !b.NewFlows || !strings.Contains(b.Health.Last, "status ") {
			t.Errorf("%s is %s", h.Name, l.healthOf("web", h))
		}
	}
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	said := false
	for _, p := range st.Problems {
		said = said || p.Warning && strings.Contains(p.Message, "fail open")
	}
	if !said {
		t.Errorf("problems are %+v, want one about fail open", st.Problems)
	}
}

// TestPassiveCheck: one of two backends drops everything, at 100 connections a second and without a
// check. It gets no new flows after some seconds, and new ones when it hears again.
func TestPassiveCheck(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, damaging: true})
	out := l.Backends[1]
	ctx, stop := context.WithCancel(l.ctx)
	defer stop()
	load := l.openAt(ctx, at(vip4, webPort), 10*time.Millisecond)
	if err := topo.Pause(l.ctx, time.Second); err != nil {
		t.Fatal(err)
	}
	if b := l.backend("web", out); b.Health != nil {
		t.Errorf("before: %s", l.healthOf("web", out))
	}
	silence(t, out, l.Gateway, 100)
	began := time.Now()
	l.within("the silent endpoint gets no new flows", func() bool { return !l.backend("web", out).NewFlows })
	took := time.Since(began)
	if b := l.backend("web", out); b.Health == nil || !b.Health.Passive || !b.Health.Down {
		t.Errorf("it is %s", l.healthOf("web", out))
	}
	if err := topo.Pause(l.ctx, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	hear(t, out)
	l.within("it gets new flows again", func() bool { return l.backend("web", out).NewFlows })
	stop()
	load.open.Wait()
	t.Logf("out after %v; of %d connections %d took longer than 0.5 s, the longest %v, %d failed", took, load.begun,
		load.slow, load.longest, load.failed)
	if took > l.bound(3*time.Second) || load.failed > 0 {
		t.Errorf("it took %v, want 3s; %d connections failed", took, load.failed)
	}
}

// TestForgedSYNsTakeNothingOut: 10,000 SYNs a second from addresses that nobody has, half of them
// with a bad checksum, which no endpoint answers, to endpoints that have no other clients. None is
// taken out.
func TestForgedSYNsTakeNothingOut(t *testing.T) {
	t.Parallel()
	const rate, batch = 10_000, 100
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, damaging: true})
	client := l.Clients[0]
	w := openWire(t, client, l.Gateway.Interfaces[0].MAC)
	vip := netip.AddrPortFrom(netip.MustParseAddr(vip4), webPort).String()
	lasts := 2 * time.Second
	if full() {
		lasts = time.Minute
	}
	sent := 0
	phase := func(bad bool, lasts time.Duration) {
		tick := time.NewTicker(time.Second * batch / rate)
		defer tick.Stop()
		for end := time.Now().Add(lasts); time.Now().Before(end); <-tick.C {
			for range batch {
				a := client.Addr4().As4()
				a[3] = byte(100 + sent%100)
				from := netip.AddrPortFrom(netip.AddrFrom4(a), uint16(1024+sent/100%60000)).String()
				frame := headertest.TCP(from, vip, headertest.SYN).Bytes()
				if bad {
					frame[len(frame)-4] ^= 0x55 // of the checksum
				}
				if err := w.send(frame); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
	}
	phase(true, lasts)
	phase(false, lasts/3)
	suspected := l.metric(`sluice_endpoint_suspicions_total{event="suspected"}`)
	down := l.metric(`sluice_endpoint_changes_total{to="down"}`)
	t.Logf("%d SYNs at 10,000 a second: %.0f suspicions, %.0f endpoints taken out", sent, suspected, down)
	for _, h := range l.Backends {
		if b := l.backend("web", h); !b.NewFlows || b.Health != nil && b.Health.Down {
			t.Errorf("%s is %s", h.Name, l.healthOf("web", h))
		}
	}
	if down > 0 {
		t.Errorf("an endpoint was taken out:\n%s", l.gate.Log())
	}
	if suspected == 0 {
		t.Error("no endpoint was suspected: the SYNs show nothing")
	}
}

// metric returns a metric of the gateway, by its name and labels.
func (l *lab) metric(name string) (v float64) {
	l.t.Helper()
	_, body, err := l.healthFrom(l.Gateway, at("127.0.0.1", 9470), "/metrics")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			if v, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
				l.t.Fatal(err)
			}
			return v
		}
	}
	l.t.Fatalf("there is no metric %s", name)
	return 0
}

// TestChecksUnderLoss: backends lose 10 % of what comes from the gateway, and of what goes there,
// for ten minutes. No endpoint goes down: neither those of a Service with an active check each
// second, nor those of one with passive checks alone, each under 50 connections a second.
func TestChecksUnderLoss(t *testing.T) {
	if !full() {
		t.Skip("takes ten minutes; set SLUICE_E2E=full")
	}
	const lasts = 10 * time.Minute
	l := newLab(t, labConfig{Config: topo.Config{Backends: 4, Queues: 2}, small: true, damaging: true,
		lasts: lasts + 5*time.Minute})
	active, passive := l.web(l.Backends...), launch.Service{Name: "passive", Port: webPort + 1,
		VIPs: []string{keepVIP4}, Endpoints: endpoints(l.Backends...)}
	active.Annotations = map[string]string{checkAnnotation: "tcp interval=1s"}
	l.apply(active, passive)
	l.applied()
	for _, h := range l.Backends {
		silence(t, h, l.Gateway, 10)
	}
	ctx, stop := context.WithTimeout(l.ctx, lasts)
	defer stop()
	loads := map[string]*opener{}
	for name, vip := range map[string]netip.AddrPort{"active": at(vip4, webPort), "passive": at(keepVIP4, webPort+1)} {
		loads[name] = l.openAt(ctx, vip, 20*time.Millisecond)
	}
	<-ctx.Done()
	for name, load := range loads {
		load.open.Wait()
		t.Logf("%s: %d connections, %d of them slower than 0.5 s, %d failed", name, load.begun, load.slow, load.failed)
		if load.slow < load.begun/10 {
			t.Errorf("%s: %d of %d connections were slow: nothing was lost", name, load.slow, load.begun)
		}
	}
	passed := l.metric(`sluice_endpoint_checks_total{result="passed"}`)
	failed := l.metric(`sluice_endpoint_checks_total{result="failed"}`)
	suspected := l.metric(`sluice_endpoint_suspicions_total{event="suspected"}`)
	down := l.metric(`sluice_endpoint_changes_total{to="down"}`)
	t.Logf("10 %% of packets lost each way for %v: %.0f checks passed, %.0f failed, %.0f suspicions, %.0f endpoints "+
		"went down", lasts, passed, failed, suspected, down)
	// Eight endpoints, of both families, are checked each second; a slow machine does less.
	if want := 4 * lasts.Seconds(); down > 0 || passed < want {
		t.Errorf("%.0f went down; %.0f checks passed, want %.0f", down, passed, want)
	}
}

// TestManyChecks: what 10,000 endpoints cost that are checked each 5 s, in processor time of the
// daemon. As veth delivers packets in the context of the sender, the endpoints' kernel is in it.
// The bound follows what the kernel takes for a connection without any check.
func TestManyChecks(t *testing.T) {
	if !full() {
		t.Skip("takes half a minute; set SLUICE_E2E=full")
	}
	const services, each, port = 10, 1000, 9200
	l := newLab(t, labConfig{Config: topo.Config{Direct: true}, quick: true, options: "waiting: shared\n"})
	backend := l.Backends[0]
	wide := netip.MustParsePrefix("10.128.0.0/16")
	err := backend.Run(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(wide),
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.Run(func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(wide), Gw: backend.Addr4().AsSlice()})
	}); err != nil {
		t.Fatal(err)
	}
	listener, err := backend.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	a := wide.Addr()
	for i := range services {
		s := launch.Service{Name: fmt.Sprintf("many-%d", i), Port: int32(9300 + i), VIPs: []string{keepVIP4}}
		for range each {
			a = a.Next()
			s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: a, Port: port})
		}
		l.apply(s)
	}
	l.applied()
	const measured = 15 * time.Second
	spend := func() time.Duration {
		before := cpuTime(t, l.gate.PID())
		if err := topo.Pause(l.ctx, measured); err != nil {
			t.Fatal(err)
		}
		return cpuTime(t, l.gate.PID()) - before
	}
	bare, err := connectCost(l.Gateway, netip.AddrPortFrom(wide.Addr().Next(), port), 2000)
	if err != nil {
		t.Fatal(err)
	}
	most := max(0.1, 1.75*bare.Seconds()*services*each/5)
	without := spend()
	if err := l.gate.WriteConfiguration(l.gate.Configuration() +
		"endpointHealth: {check: \"tcp interval=5s\"}\n"); err != nil {
		t.Fatal(err)
	}
	l.eventually(20*time.Second, "all endpoints are checked", func() bool {
		return l.metric(`sluice_checked_endpoints{state="checked"}`) >= services*each
	})
	if err := topo.Pause(l.ctx, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	count := func() float64 { return l.metric(`sluice_endpoint_checks_total{result="passed"}`) }
	before := count()
	with := spend()
	done := (count() - before) / measured.Seconds()
	share := float64(with-without) / float64(measured)
	t.Logf("%d endpoints, a check each 5 s: %.0f checks a second, %.1f %% of a core (%.1f us a check, a bare "+
		"connection %.1f us); idle %.1f %%", services*each, done, 100*share,
		float64((with-without).Microseconds())/done/measured.Seconds(), 1e6*bare.Seconds(),
		100*float64(without)/float64(measured))
	if done < 0.98*services*each/5 || share > most {
		t.Errorf("%.0f checks a second take %.3f of a core, want %d at least and %.3f at most", done, share,
			services*each/5, most)
	}
	if down := l.metric(`sluice_endpoint_changes_total{to="down"}`); down > 0 {
		t.Errorf("%.0f endpoints went down", down)
	}
}

// connectCost returns the processor time of one of n TCP connections of a thread, each of which is
// opened and closed.
func connectCost(from *topo.Host, to netip.AddrPort, n int) (time.Duration, error) {
	var each time.Duration
	err := from.Run(func() error {
		used := func() time.Duration {
			var u unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // cannot fail with these arguments
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		before := used()
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
			unix.Close(fd)
			if err != nil {
				return err
			}
		}
		each = (used() - before) / time.Duration(n)
		return nil
	})
	return each, err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
