//go:build root

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// TestSourcePortsRunShort: before a UDP flow is refused for lack of a source port, the metric is
// above 0.8 and doctor names the backend.
func TestSourcePortsRunShort(t *testing.T) {
	t.Parallel()
	const ports, flows = 100, 90
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 1}, small: true,
		options: fmt.Sprintf("snat: {ports: 16384-%d}\n", 16384+ports-1)})
	load, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort)}, Flows: flows})
	if err != nil {
		t.Fatal(err)
	}
	defer load.Stop()
	const series = `sluice_source_ports_used_ratio{family="ipv4",protocol="UDP"} `
	last := ""
	l.eventually(10*time.Second, "the metric says how many ports are used", func() bool {
		_, text, err := l.Gateway.Get(l.ctx, "http://127.0.0.1:9470/metrics")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(text, "\n"+series)
		last, _, _ = strings.Cut(after, "\n")
		return last == fmt.Sprint(float64(flows)/ports)
	})
	found, _ := l.gate.Command(l.ctx, "doctor") // an error if anything else of this host is not fit
	want := fmt.Sprintf("UDP to %v uses %d of the %d ports", netip.AddrPortFrom(l.Backends[0].Addr4(), backendPort),
		flows, ports)
	if !strings.Contains(found, want) {
		t.Errorf("the metric is %s, and doctor lacks %q:\n%s", last, want, found)
	}
}
