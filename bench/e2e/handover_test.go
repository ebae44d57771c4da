package e2e

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/bench/topo"
)

// TestRestingConnectionsCount: connections that send nothing count for their backends after a
// crash, so that nobody who waits until they are 0 ends them.
func TestRestingConnectionsCount(t *testing.T) {
	const open = 60
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Flows: open, Interval: 4 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := l.connections()
	sum := int32(0)
	for _, n := range before {
		sum += n
	}
	if sum != open {
		t.Fatalf("%d connections before, want %d: %v", sum, open, before)
	}
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	after, packets := l.connections()
	t.Logf("connections by backend: %v", after)
	if !maps.Equal(after, before) {
		t.Errorf("connections by backend are %v after the restart, were %v", after, before)
	}
	if packets > open/2 { // one may have been under way
		t.Errorf("%d packets were translated meanwhile: the connections did not rest", packets)
	}
	if n := flows.Broken(); n > 0 {
		t.Errorf("%d of %d flows broke", n, open)
	}
	flows.Stop()
}

// connections are those that count for each backend, and how many packets the daemon translated.
func (l *lab) connections() (open map[string]int32, packets uint64) {
	l.t.Helper()
	list, err := l.gate.Client.Backends(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	open = map[string]int32{}
	for _, b := range list {
		open[b.Service+" "+b.Address.String()] = b.Connections
		packets += b.Traffic.ToBackend + b.Traffic.ToClient
	}
	return open, packets
}
