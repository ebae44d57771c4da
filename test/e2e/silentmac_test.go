//go:build root

package e2e

import (
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/topo"
)

// TestSilentMACChange: a backend's MAC address changes while a client asks it over UDP, and nothing
// announces it: no gratuitous ARP, no unsolicited neighbour advertisement. The first answer after
// that comes within 10 s in both families: an interval of verification (5 s), a tick (1 s), three
// unanswered requests (3 s). The kernel's own forwarding takes 4 s to 37 s.
func TestSilentMACChange(t *testing.T) {
	const within = 10 * time.Second
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true})
	client, backend := l.Clients[0], l.Backends[0]
	l.apply(l.dns(backend))
	l.applied()
	conns := map[string]net.Conn{}
	for _, vip := range []string{vip4, vip6} {
		conn, err := client.Dial(l.ctx, "udp", at(vip, dnsPort).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := ask(conn, []byte("before")); err != nil {
			t.Fatal(err)
		}
		conns[vip] = conn
	}
	err := backend.Run(func() error {
		link, err := netlink.LinkByName(backend.Interfaces[0].Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0xaa, 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	changed := time.Now()
	for len(conns) > 0 && time.Since(changed) < within {
		for vip, conn := range conns {
			in := make([]byte, 64)
			_ = conn.SetDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := conn.Write([]byte("after")); err != nil {
				continue
			}
			if _, err := conn.Read(in); err == nil {
				t.Logf("%s: answered after %v", vip, time.Since(changed).Round(time.Millisecond))
				delete(conns, vip)
			}
		}
	}
	for vip := range conns {
		t.Errorf("%s: no answer %v after the backend's MAC address changed", vip, within)
	}
}
