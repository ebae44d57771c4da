//go:build root

package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestVLAN: hosts and gateway have their addresses on VLAN devices, so nothing untagged reaches
// anybody. The gateway is given the interfaces below, and takes and sets the tags itself.
func TestVLAN(t *testing.T) {
	machine.Need(t, machine.VLAN)
	for _, c := range []struct {
		name string
		labConfig
	}{
		{"tagged on both sides", labConfig{Config: topo.Config{Backends: 2, Queues: 2, FrontVLANs: []uint16{5},
			BackVLANs: []uint16{7}}}},
		{"one interface, two VLANs", labConfig{Config: topo.Config{Backends: 2, Queues: 2, OneArmed: true,
			FrontVLANs: []uint16{5}, BackVLANs: []uint16{4094}}}},
		{"clients tagged, backends not",
			labConfig{Config: topo.Config{Backends: 2, Queues: 2, FrontVLANs: []uint16{5}}}},
		{"two tags", labConfig{Config: topo.Config{Backends: 2, Queues: 2, FrontVLANs: []uint16{5, 6},
			BackVLANs: []uint16{7, 8}}}},
		{"802.1ad outside", labConfig{Config: topo.Config{Backends: 2, Queues: 2, FrontVLANs: []uint16{5, 6},
			BackVLANs: []uint16{7, 8}, ServiceTag: true}}},
		{"the VLAN devices themselves", labConfig{
			Config:     topo.Config{Backends: 2, FrontVLANs: []uint16{5}, BackVLANs: []uint16{7}},
			interfaces: []string{"front0.5", "back0.7"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.small = true
			l := newLab(t, c.labConfig)
			l.vlanTraffic()
			if err := l.gate.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := l.gate.Start(l.ctx); err != nil {
				t.Fatal(err)
			}
			l.wantServed("after kill -9")
			s := l.checkLaws()
			t.Logf("the gateway received %d packets and sent %d; drops %v; steered %d",
				sum(&s, func(w *status.WorkerView) uint64 { return w.Rx }),
				sum(&s, func(w *status.WorkerView) uint64 { return w.Tx }),
				drops(&s), s.Steering["steered"])
		})
	}
}

// vlanTraffic is requests, transfers of whole packets each way, and datagrams in fragments, both
// families.
func (l *lab) vlanTraffic() {
	l.t.Helper()
	before := l.vlanPackets()
	const requests, size, datagrams = 200, 1<<20 + 17, 10
	targets := []netip.AddrPort{at(vip4, webPort), at(vip6, webPort),
		netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort), netip.AddrPortFrom(l.Gateway.Addr6(), webNodePort)}
	client := l.Clients[0]
	r, err := client.HTTP(l.ctx, topo.HTTPLoad{Targets: targets, Requests: requests, Concurrency: 4})
	if err != nil {
		l.t.Fatal(err)
	}
	if r.Failed() > 0 || r.Requests != requests || r.Deviation(fair(l.Backends)) > 5 {
		l.t.Errorf("requests: %v, errors %v, shares %v", r, r.Errors, r.Shares)
	}
	for _, target := range targets[:2] {
		down, err := client.Download(l.ctx, target, size)
		if err != nil {
			l.t.Fatal(err)
		}
		up, err := client.Upload(l.ctx, target, size)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Logf("%v: %d bytes each way in %v and %v, SHA-256 equal", target, size,
			down.Elapsed.Round(time.Millisecond), up.Elapsed.Round(time.Millisecond))
	}
	for _, payload := range []int{64, 1400, 4096} {
		flows, err := client.OpenUDP(l.ctx, topo.FlowLoad{
			Targets: []netip.AddrPort{at(vip4, dnsPort), at(vip6, dnsPort)}, Flows: datagrams,
			Interval: 50 * time.Millisecond, Payload: payload,
		})
		if err != nil {
			l.t.Fatal(err)
		}
		l.answered(flows, 2)
		if u := flows.Finish(); u.Failed() > 0 {
			l.t.Errorf("datagrams of %d bytes: %v", payload, u.Errors)
		}
	}
	after := l.vlanPackets()
	for dev, n := range after {
		if n-before[dev] < requests {
			l.t.Errorf("only %d packets came in by %s", n-before[dev], dev)
		}
	}
	l.t.Logf("%v; packets that came in with tags: %v", r, after)
}

// vlanPackets counts what came in by the VLAN devices of clients and backends.
func (l *lab) vlanPackets() map[string]uint64 {
	l.t.Helper()
	n := map[string]uint64{}
	for _, h := range append(append([]*topo.Host{}, l.Clients...), l.Backends...) {
		dev := h.Interfaces[0].VLAN
		if dev == "" {
			continue
		}
		err := h.Run(func() error {
			link, err := netlink.LinkByName(dev)
			if err == nil {
				n[h.Name+" "+dev] = link.Attrs().Statistics.RxPackets
			}
			return err
		})
		if err != nil {
			l.t.Fatal(fmt.Errorf("count packets: %w", err))
		}
	}
	return n
}
