//go:build root

package topo

import (
	"net/netip"
	"testing"
)

// TestDirect: hosts are joined without a bridge, and each end has its queues, on
// which receive packet steering can be set.
func TestDirect(t *testing.T) {
	n, err := New(Config{Direct: true, Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := n.Gateway.Forward(true); err != nil {
		t.Fatal(err)
	}
	const port = 8080
	server, err := n.Backends[0].Serve(port)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	to := netip.AddrPortFrom(n.Backends[0].Addr4(), port)
	r, err := n.Clients[0].HTTP(t.Context(), HTTPLoad{Targets: []netip.AddrPort{to}, Requests: 1, Concurrency: 1})
	if err != nil || r.Failed() > 0 {
		t.Errorf("client0 does not reach %s: %v, %v", to, err, r.Errors)
	}
	for _, dev := range []string{"front0", "back0"} {
		for _, queue := range []string{"queues/rx-0/rps_cpus", "queues/rx-1/rps_cpus"} {
			if err := n.Gateway.SetDevice(dev, queue, "3"); err != nil {
				t.Fatal(err)
			}
			if v, err := n.Gateway.Device(dev, queue); err != nil || v != "3" {
				t.Errorf("%s %s: %q, %v", dev, queue, v, err)
			}
		}
	}
	if v, err := n.Gateway.Device("front0", "mtu"); err != nil || v != "1500" {
		t.Errorf("mtu %q, %v", v, err)
	}
	if _, err := n.Gateway.Device("eth0", "mtu"); err == nil {
		t.Error("the gateway has an eth0")
	}
}
