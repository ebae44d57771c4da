//go:build root

package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/test/bed/topo"
)

// TestUnfinishedChecksums: a sender on a veth that leaves checksums to a device completes no
// connection. The status says so from its second SYN on, as no packet is dropped: the first one
// changes no flow, and its checksum is not looked at.
func TestUnfinishedChecksums(t *testing.T) {
	t.Parallel()
	c := labConfig{Config: topo.Config{Queues: 1}, interfaces: []string{"front0", "back0", spare}, small: true,
		damaging: true}
	c.prepare = func(l *lab) { addSpare(t, l.Gateway, l.Clients[0]) }
	l := newLab(t, c)
	answered := func() bool {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at("10.73.0.1", webNodePort)},
			Requests: 1, Concurrency: 1, Timeout: 1500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return r.Failed() == 0
	}
	finish := func(on bool) {
		t.Helper()
		if err := l.Clients[0].Run(func() error {
			return ethtool.SetFeatures(spare, map[string]bool{"tx-checksum-ip-generic": !on})
		}); err != nil {
			t.Fatal(err)
		}
	}
	l.within("the node port is served", answered)
	if c := l.condition("checksums"); c.Name != "" {
		t.Errorf("warned of finished checksums: %+v", c)
	}
	finish(false)
	if answered() {
		t.Error("a connection was completed with unfinished checksums: the test shows nothing")
	}
	if c := l.condition("checksums"); c.Level != "warn" || !strings.Contains(c.Detail, "unfinished checksums") {
		t.Errorf("not warned of unfinished checksums: %+v", c)
	}
	finish(true)
	l.within("the node port is served again", answered)
}
