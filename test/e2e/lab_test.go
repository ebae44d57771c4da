//go:build root

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// The lab's VIPs, outside of every segment: clients reach them by their default route.
const (
	vip4, vip6       = "203.0.113.10", "2001:db8:f::10"
	external4        = "203.0.113.20"
	keepVIP4         = "203.0.113.30"
	keepVIP6         = "2001:db8:f::30"
	backendPort      = 8080
	localBackendPort = 8090
	webPort, dnsPort = 80, 53
	webNodePort      = 30080
	gatewayNode      = "gateway"
)

// full reports whether the long runs are requested.
func full() bool { return os.Getenv("SLUICE_E2E") == "full" }

var daemonBinary string // the daemon, built once

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	daemonBinary, err = launch.Build(dir, os.Getenv("SLUICE_RACE") == "1")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Every test checks that its own network and gateway leave nothing behind.
	return m.Run()
}

// lab is a network with a gateway that forwards.
type lab struct {
	*topo.Net
	t       *testing.T
	ctx     context.Context
	gate    *launch.Gateway
	servers []*topo.Server
	damage  map[*topo.Host]topo.Counters
	damaged bool // by the wires, so that it is not held against the gateway

	lateness *machine.Lateness
}

// bound is a bound of time for what wakes some ten threads one after the other, on this machine.
func (l *lab) bound(d time.Duration) time.Duration {
	l.t.Helper()
	bound, late := l.lateness.Bound(d, 10)
	l.t.Logf("threads woke up to %v late: %v counts as %v", late, d, bound)
	return bound
}

// labConfig lists what differs from a two-armed gateway on all its interfaces.
type labConfig struct {
	topo.Config
	interfaces []string // of the gateway, that sluice forwards on
	options    string   // more of its configuration
	prepare    func(*lab)
	small      bool // tables for thousands of flows and not for a million, which guests take minutes to prepare
	quick      bool // the gateway does not check its own work, which takes as long as the work
	damaging   bool // the wires are: what kernels receive damaged says nothing of the gateway

	lasts time.Duration // the test; 5 min
}

// newLab builds the network, starts a server on every backend and the gateway with
// a service "web" (TCP) and "dns" (UDP) over all of them.
func newLab(t *testing.T, c labConfig) *lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), machine.Slower(max(c.lasts, 5*time.Minute)))
	t.Cleanup(cancel)
	lateness := new(machine.Lateness)
	go lateness.Watch(ctx)
	n, err := topo.New(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{Net: n, t: t, ctx: ctx, lateness: lateness,
		damage: map[*topo.Host]topo.Counters{}, damaged: c.damaging}
	t.Cleanup(l.close)
	for _, h := range n.Backends {
		s, err := h.Serve(backendPort)
		if err != nil {
			t.Fatal(err)
		}
		l.servers = append(l.servers, s)
	}
	if c.prepare != nil {
		c.prepare(l)
	}
	if c.small {
		c.options += "flows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096}\n"
	}
	l.gate, err = launch.New(launch.Config{
		Sluice: daemonBinary, Host: n.Gateway, NodeName: gatewayNode, Interfaces: c.interfaces, Options: c.options,
		Env: c.env(),
	})
	if err != nil {
		t.Fatal(err)
	}
	l.apply(l.web(n.Backends...), l.dns(n.Backends...))
	if err := l.gate.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range l.hosts() {
		if l.damage[h], err = h.Counters(); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (c *labConfig) env() []string {
	if c.quick {
		return nil
	}
	return []string{"SLUICE_VALIDATE=1"}
}

func (l *lab) hosts() []*topo.Host {
	return append(append([]*topo.Host{l.Gateway}, l.Clients...), l.Backends...)
}

// close checks what must hold after every test, and that nothing is left.
func (l *lab) close() {
	if l.gate != nil && !l.t.Failed() {
		l.checkLaws()
		if !l.damaged {
			l.checkDamage()
		}
	}
	if l.gate != nil {
		l.stop()
		if err := l.gate.Close(); err != nil {
			l.t.Error(err)
		}
	}
	if err := l.Net.Close(); err != nil {
		l.t.Error(err)
	}
	left, err := l.Net.Leftovers()
	if err != nil || len(left) > 0 {
		l.t.Errorf("left behind: %v %v", left, err)
	}
}

// stop ends the daemon, which must take everything with it.
func (l *lab) stop() {
	if l.t.Failed() {
		l.explain()
	}
	if err := l.gate.Stop(); err != nil {
		l.t.Errorf("the daemon's end: %v\n%s", err, l.gate.Log())
		return
	}
	if left, err := l.gate.Leftovers(); err != nil || len(left) > 0 {
		l.t.Errorf("the daemon left behind: %v %v", left, err)
	}
}

// explain prints what a failed test leaves to look at.
func (l *lab) explain() {
	if s, err := l.gate.Client.Stats(l.ctx); err == nil {
		l.t.Logf("statistics: %+v", s)
	}
	shown := 0
	_ = l.gate.Client.Flows(l.ctx, status.FlowFilter{}, func(f *status.FlowView) error {
		if shown++; shown <= 20 {
			l.t.Logf("flow: %+v", *f)
		}
		return nil
	})
	for h, before := range l.damage {
		now, err := h.Counters()
		if err != nil {
			continue
		}
		d := now.Since(before)
		maps.DeleteFunc(d, func(_ string, v uint64) bool { return v == 0 })
		l.t.Logf("%s counted: %v", h.Name, d)
	}
	l.t.Logf("daemon:\n%s", l.gate.Log())
}

// checkLaws holds the gateway to the packet law and the frame law, exactly.
func (l *lab) checkLaws() status.StatsView {
	l.t.Helper()
	s, err := l.gate.Laws(l.ctx)
	if err != nil {
		l.t.Errorf("after the test: %v", err)
	}
	for _, q := range s.Queues {
		if q.TxInvalidDescs+q.RxInvalidDescs > 0 {
			l.t.Errorf("kernel refused descriptors: %+v", q)
		}
	}
	return s
}

// checkDamage: no kernel received anything with a bad header or checksum.
func (l *lab) checkDamage() {
	l.t.Helper()
	for h, before := range l.damage {
		now, err := h.Counters()
		if err != nil {
			l.t.Error(err)
			continue
		}
		if bad := now.Since(before).Damaged(); len(bad) > 0 {
			l.t.Errorf("%s received damaged packets: %v", h.Name, bad)
		}
	}
}

func (l *lab) apply(services ...launch.Service) {
	l.t.Helper()
	if err := l.gate.Apply(services...); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) applied() {
	l.t.Helper()
	if _, err := l.gate.Applied(l.ctx); err != nil {
		l.t.Fatal(err)
	}
}

func endpoints(hosts ...*topo.Host) (list []launch.Endpoint) {
	for _, h := range hosts {
		list = append(list,
			launch.Endpoint{Addr: h.Addr4(), Port: backendPort, Node: h.Name},
			launch.Endpoint{Addr: h.Addr6(), Port: backendPort, Node: h.Name})
	}
	return list
}

// serveLocally starts a server in the gateway's own namespace, and returns its
// endpoints.
func (l *lab) serveLocally() []launch.Endpoint {
	l.t.Helper()
	s, err := l.Gateway.ServeOn("local", localBackendPort, l.Gateway.Addr4(), l.Gateway.Addr6())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { s.Close() })
	return []launch.Endpoint{
		{Addr: l.Gateway.Addr4(), Port: localBackendPort, Node: gatewayNode},
		{Addr: l.Gateway.Addr6(), Port: localBackendPort, Node: gatewayNode},
	}
}

func (l *lab) web(hosts ...*topo.Host) launch.Service {
	return launch.Service{
		Name: "web", Port: webPort, NodePort: webNodePort, VIPs: []string{vip4, vip6},
		ExternalIPs: []string{external4}, Endpoints: endpoints(hosts...),
	}
}

func (l *lab) dns(hosts ...*topo.Host) launch.Service {
	return launch.Service{Name: "dns", UDP: true, Port: dnsPort, VIPs: []string{vip4, vip6},
		Endpoints: endpoints(hosts...)}
}

// onLink changes an interface of the gateway.
func (l *lab) onLink(name string, change func(netlink.Link) error) {
	l.t.Helper()
	err := l.Gateway.Run(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

func fair(hosts []*topo.Host) map[string]float64 {
	w := map[string]float64{}
	for _, h := range hosts {
		w[h.Name] = 1
	}
	return w
}

// drops adds up what all workers dropped, by reason.
func drops(s *status.StatsView) map[string]uint64 {
	all := map[string]uint64{}
	for i := range s.Workers {
		for reason, n := range s.Workers[i].Drops {
			all[reason] += n
		}
	}
	return all
}

// sum adds up a worker counter over all workers.
func sum(s *status.StatsView, f func(*status.WorkerView) uint64) (n uint64) {
	for i := range s.Workers {
		n += f(&s.Workers[i])
	}
	return n
}
