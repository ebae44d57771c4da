//go:build root

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestHTTP: 10,000 new connections through VIP, NodePort and external IP, both
// families: no error, and fair shares.
func TestHTTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		topo.Config
	}{
		{"two-armed", topo.Config{Backends: 4, Queues: 2}},
		{"one-armed", topo.Config{Backends: 2, Queues: 1, OneArmed: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, labConfig{Config: c.Config})
			gateway := l.Gateway
			targets := map[string]netip.AddrPort{
				"VIP IPv4": at(vip4, webPort), "VIP IPv6": at(vip6, webPort), "externalIP": at(external4, webPort),
				"NodePort IPv4": netip.AddrPortFrom(gateway.Addr4(), webNodePort),
				"NodePort IPv6": netip.AddrPortFrom(gateway.Addr6(), webNodePort),
			}
			for name, target := range targets {
				r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: 2000,
					Concurrency: 8})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s: %v; worst share %.1f standard deviations from fair", name, r, r.Deviation(fair(l.Backends)))
				if r.Failed() > 0 || r.Requests != 2000 {
					t.Errorf("%s: errors %v", name, r.Errors)
				}
				if d := r.Deviation(fair(l.Backends)); d > 5 {
					t.Errorf("%s: shares %v", name, r.Shares)
				}
				if want := towardsBackends(gateway, target.Addr()).String(); r.Clients[want] != 2000 {
					t.Errorf("%s: backends saw %v, want %s: the address on their segment", name, r.Clients, want)
				}
			}
		})
	}
}

// towardsBackends is the gateway's address, of the family of a target, on the
// interface that backends are behind.
func towardsBackends(gateway *topo.Host, target netip.Addr) netip.Addr {
	i := gateway.Interfaces[len(gateway.Interfaces)-1]
	if target.Is4() {
		return i.Addr4.Addr()
	}
	return i.Addr6.Addr()
}

// TestWorkersShareFlows: with two queues a reply often arrives at the worker that
// did not make its flow. Every packet must be translated all the same.
func TestWorkersShareFlows(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Clients: 2, Backends: 4, Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: 400, Interval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	datagrams, err := l.Clients[1].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort),
		at(vip6, dnsPort)}, Flows: 200, Interval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // the length of the load, not a wait for something
	broken := flows.Broken()
	r, u := flows.Stop(), datagrams.Stop()
	s := l.checkLaws()
	if broken > 0 || r.Failed() > 0 || u.Failed() > 0 {
		t.Errorf("broken flows %d, TCP errors %v, UDP errors %v", broken, r.Errors, u.Errors)
	}
	drops := map[string]uint64{}
	for _, w := range s.Workers {
		for reason, n := range w.Drops {
			drops[reason] += n
		}
		if w.Rx == 0 {
			t.Errorf("worker %d received nothing: the load does not reach both queues", w.Worker)
		}
	}
	delete(drops, "host_link_other") // the kernel's own neighbour discovery on the host link
	if len(drops) > 0 {
		t.Errorf("drops %v", drops)
	}
	full := uint64(0)
	for _, q := range s.Queues {
		full += q.RxDropped + q.RxRingFull
	}
	t.Logf("%d TCP and %d UDP answers, all by the right backend; worker packets %d and %d; drops %v; packets that "+
		"the kernel did not deliver to the sockets: %d",
		r.Requests, u.Requests, s.Workers[0].Rx, s.Workers[1].Rx, drops, full)
}

// TestTransfers: one large body over one connection each way, both families.
func TestTransfers(t *testing.T) {
	size := int64(64 << 20)
	if full() {
		size = 1 << 30
	}
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	for _, target := range []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)} {
		for name, transfer := range map[string]func() (*topo.Transfer, error){
			"download": func() (*topo.Transfer, error) { return l.Clients[0].Download(l.ctx, target, size) },
			"upload":   func() (*topo.Transfer, error) { return l.Clients[0].Upload(l.ctx, target, size) },
		} {
			r, err := transfer()
			if err != nil {
				t.Errorf("%s %v: %v", name, target, err)
				continue
			}
			t.Logf("%s %v: %d MiB in %v, %.2f Gbit/s, SHA-256 equal", name, target, r.Bytes>>20,
				r.Elapsed.Round(time.Millisecond), float64(r.Bytes)*8/float64(r.Elapsed.Nanoseconds()))
		}
	}
}

// TestClientAddressIsKept: external traffic policy Local, with an endpoint in the gateway's own
// namespace. With policy Cluster the same endpoint sees the gateway's address.
func TestClientAddressIsKept(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	local := l.serveLocally()
	l.apply(launch.Service{
		Name: "keep", Port: webPort, Local: true, VIPs: []string{keepVIP4, keepVIP6},
		Endpoints: append(endpoints(l.Backends...), local...), // those elsewhere are not chosen
	})
	l.applied()
	client := l.Clients[0]
	for vip, want := range map[string]netip.Addr{keepVIP4: client.Addr4(), keepVIP6: client.Addr6()} {
		r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: 200,
			Concurrency: 4, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() > 0 || r.Shares["local"] != 200 || r.Clients[want.String()] != 200 {
			t.Errorf("%s: errors %v, backends %v, client addresses seen %v, want %v", vip, r.Errors, r.Shares,
				r.Clients, want)
		}
	}
	s := l.checkLaws()
	if s.Steering["egress_redirected"] == 0 {
		t.Error("no reply was caught on its way out")
	}
	if err := l.gate.Remove("keep"); err != nil {
		t.Fatal(err)
	}
	l.applied()
	l.wantLocalEndpointsWithSNAT(local)
}

// TestKernelRoutedBackend: backends behind a device that is not the gateway's own.
// The kernel carries packets on, and replies come back by the host link: to our
// address on it, or caught on their way out where the client's address was kept.
func TestKernelRoutedBackend(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, interfaces: []string{"front0"}})
	if err := l.Gateway.Forward(true); err != nil {
		t.Fatal(err)
	}
	keep := launch.Service{Name: "keep", Port: webPort, Local: true, VIPs: []string{keepVIP4, keepVIP6}}
	for _, e := range endpoints(l.Backends...) {
		e.Node = gatewayNode // pods of this node
		keep.Endpoints = append(keep.Endpoints, e)
	}
	l.apply(keep)
	l.applied()
	client := l.Clients[0]
	for vip, want := range map[string]string{
		keepVIP4: client.Addr4().String(), keepVIP6: client.Addr6().String(),
		vip4: "192.0.0.2", vip6: "fd73:6c75:6963:6500::2",
	} {
		r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: 300,
			Concurrency: 4, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() > 0 || r.Clients[want] != 300 || r.Deviation(fair(l.Backends)) > 5 {
			t.Errorf("%s: errors %v, shares %v, client addresses seen %v, want %v", vip, r.Errors, r.Shares, r.Clients,
				want)
		}
	}
}

// wantLocalEndpointsWithSNAT: policy Cluster and an endpoint on this node.
func (l *lab) wantLocalEndpointsWithSNAT(local []launch.Endpoint) {
	t := l.t
	t.Helper()
	l.apply(launch.Service{Name: "cluster", Port: webPort, VIPs: []string{keepVIP4, keepVIP6}, Endpoints: local})
	l.applied()
	for vip, want := range map[string]string{keepVIP4: "192.0.0.2", keepVIP6: "fd73:6c75:6963:6500::2"} {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: 200,
			Concurrency: 4, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() > 0 || r.Clients[want] != 200 {
			t.Errorf("%s: errors %v, client addresses seen %v", vip, r.Errors, r.Clients)
		}
	}
}

// TestPathMTU: the link to the backends is narrower than both ends believe.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	// The source address is on the other segment, so that the backend's kernel goes by
	// what AdvertiseMTU says of the way to it.
	l := newLab(t, labConfig{Config: topo.Config{BackendMTU: 1400, Queues: 2},
		options: "snat: {addresses: [10.71.0.1, 'fd71::1']}\n"})
	if err := l.Backends[0].AdvertiseMTU(1500); err != nil {
		t.Fatal(err)
	}
	for _, vip := range []string{vip4, vip6} {
		began := time.Now()
		r, err := l.Clients[0].Upload(l.ctx, at(vip, webPort), 4<<20)
		if err != nil {
			t.Errorf("%s: %v", vip, err)
			continue
		}
		t.Logf("%s: %d MiB towards a link of MTU 1400 in %v", vip, r.Bytes>>20,
			time.Since(began).Round(time.Millisecond))
	}
	s := l.checkLaws()
	tooBig := sum(&s, func(w *status.WorkerView) uint64 { return w.Drops["packet_too_big"] })
	if tooBig == 0 {
		t.Error("no packet was too big: the test does not test path MTU discovery")
	}
}
