package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Addresses and ports. VIPs are outside of every segment: clients reach them by their default
// route.
const (
	vip4, vip6   = "203.0.113.10", "2001:db8:f::10"
	floodVIP     = "203.0.113.50"
	webPort      = 80
	dnsPort      = 53
	floodPort    = 9000
	otherPort    = 1000 // and on: laboratory Services have one ClusterIP
	backendPort  = 8080
	staying      = 3       // backends that are never ended
	ends, silent = 3, 4    // the one whose server ends, the one that a flood is for
	flows        = 1 << 16 // of each family
)

// A stop is a hand-over: the next process finds everything.
const handsOver = "drain: {timeout: 1s, handOver: true}\n"

// world is the network, the gateway and its load.
type world struct {
	*Config
	net      *topo.Net
	gate     *launch.Gateway
	random   *rand.Rand // of the goroutine of rounds
	server   *topo.Server
	lasting  *load // established before the first round
	datagram *topo.Flows

	mu   sync.Mutex
	gone bool // the backend that ends is not to be an endpoint
}

func build(ctx context.Context, c *Config) (w *world, err error) {
	w = &world{Config: c, random: rand.New(rand.NewPCG(c.Seed, 0))}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
			w = nil
		}
	}()
	if w.net, err = topo.New(topo.Config{Clients: 3, Backends: silent + 1, Queues: 2}); err != nil {
		return w, err
	}
	for _, h := range w.net.Backends[:silent] {
		if w.server, err = h.Serve(backendPort); err != nil { // the last one is of the backend that ends
			return w, err
		}
	}
	for _, i := range w.net.Gateway.Interfaces { // Linux takes IPv6 addresses away from a link that goes down
		if err := w.net.Gateway.SetSysctl("net.ipv6.conf."+i.Name+".keep_addr_on_down", "1"); err != nil {
			return w, err
		}
	}
	w.gate, err = launch.New(launch.Config{Sluice: c.Sluice, Host: w.net.Gateway, Options: handsOver +
		fmt.Sprintf("flows: {ipv4: %d, ipv6: %d}\ntuning: {affinityClients: 4096}\n", flows, flows)})
	if err != nil {
		return w, err
	}
	if err := w.change(0); err != nil {
		return w, err
	}
	if err := w.gate.Apply(launch.Service{Name: "flood", Port: floodPort, VIPs: []string{floodVIP},
		Endpoints: endpoints(w.net.Backends[silent])}); err != nil {
		return w, err
	}
	if err := w.gate.Start(ctx); err != nil {
		return w, fmt.Errorf("%w\n%s", err, w.gate.Log())
	}
	return w, w.open(ctx)
}

// open opens the load that lasts as long as the soak.
func (w *world) open(ctx context.Context) (err error) {
	lifetime := 2*w.Duration + 10*time.Minute
	if w.lasting, err = w.connect(ctx, w.Connections, lifetime); err != nil {
		return err
	}
	w.datagram, err = w.net.Clients[0].OpenUDP(ctx, topo.FlowLoad{Targets: targets(dnsPort), Flows: w.Datagrams,
		Interval: 200 * time.Millisecond, Timeout: time.Second, Lifetime: lifetime})
	return err
}

// close ends everything and removes it.
func (w *world) close() error {
	var errs []error
	if w.lasting != nil {
		w.lasting.flows.Stop()
	}
	if w.datagram != nil {
		w.datagram.Stop()
	}
	if w.gate != nil {
		errs = append(errs, w.gate.Close())
	}
	if w.net != nil {
		errs = append(errs, w.net.Close())
	}
	return errors.Join(errs...)
}

func targets(port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(vip4), port),
		netip.AddrPortFrom(netip.MustParseAddr(vip6), port)}
}

func endpoints(hosts ...*topo.Host) (list []launch.Endpoint) {
	for _, h := range hosts {
		list = append(list, launch.Endpoint{Addr: h.Addr4(), Port: backendPort, Node: h.Name},
			launch.Endpoint{Addr: h.Addr6(), Port: backendPort, Node: h.Name})
	}
	return list
}

// churn changes endpoints and Services until ctx is done.
func (w *world) churn(ctx context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		if err := w.change(n); err != nil {
			return err
		}
		_ = topo.Pause(ctx, 100*time.Millisecond)
	}
	return nil
}

// change writes the n-th edit: one of the backends that stay is out, and one of eight Services that
// nobody asks comes or goes.
func (w *world) change(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var in []*topo.Host
	for i, h := range w.net.Backends[:silent] {
		if i != n%staying && !(i == ends && w.gone) {
			in = append(in, h)
		}
	}
	other := launch.Service{Name: fmt.Sprint("other-", n%8), Port: int32(otherPort + n%8),
		VIPs: []string{fmt.Sprint("203.0.113.", 100+n%8)}, Endpoints: endpoints(in...)}
	if n%16 >= 8 {
		if err := w.gate.Remove(other.Name); err != nil {
			return err
		}
	} else if err := w.gate.Apply(other); err != nil {
		return err
	}
	vips := []string{vip4, vip6}
	return w.gate.Apply(
		launch.Service{Name: "web", Port: webPort, VIPs: vips, Endpoints: endpoints(in...)},
		launch.Service{Name: "dns", UDP: true, Port: dnsPort, VIPs: vips, Endpoints: endpoints(in...)})
}

// setGone takes the backend that ends out of all endpoints, or back in.
func (w *world) setGone(ctx context.Context, gone bool) error {
	w.mu.Lock()
	w.gone = gone
	w.mu.Unlock()
	_ = topo.Pause(ctx, 200*time.Millisecond) // the next edit is written
	_, err := w.gate.Applied(ctx)
	return err
}

// load is connections that are judged after every round.
type load struct {
	flows *topo.Flows
	known []bool // broken, and counted
}

// connect opens connections, all of which must come about. One breaks if it has no answer for a
// timeout that is longer than any fault.
func (w *world) connect(ctx context.Context, n int, lifetime time.Duration) (*load, error) {
	f, err := w.net.Clients[0].OpenTCP(ctx, topo.FlowLoad{Targets: targets(webPort), Flows: n,
		Interval: 200 * time.Millisecond, Timeout: 30 * time.Second, Lifetime: lifetime})
	if err != nil {
		return nil, err
	}
	states := f.States()
	if i := slices.IndexFunc(states, func(s topo.FlowState) bool { return s.Broken != nil }); i >= 0 {
		f.Stop()
		return nil, fmt.Errorf("a connection could not be opened: %w", states[i].Broken)
	}
	return &load{flows: f, known: make([]bool, n)}, nil
}

// judge counts what broke since the last time: by the end of its backend, which is named, and
// otherwise.
func (l *load) judge(ended string) (byBackend int, broken []error) {
	for i, f := range l.flows.States() {
		if f.Broken == nil || l.known[i] {
			continue
		}
		l.known[i] = true
		if ended != "" && f.Backend == ended {
			byBackend++
			continue
		}
		broken = append(broken, fmt.Errorf("the connection from %v to %v, %d answers by %s: %w", f.Local, f.Target,
			f.Answers, f.Backend, f.Broken))
	}
	return byBackend, broken
}
