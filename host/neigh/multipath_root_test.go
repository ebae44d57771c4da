//go:build root

package neigh

import (
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestMultipathOfTheKernelIsReported: multipath routes of both families and a policy rule make
// warnings.
func TestMultipathOfTheKernelIsReported(t *testing.T) {
	gw, _, m := pair(t, Config{})
	gw.do(func() error {
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family, r.Src = 100, 100, netlink.FAMILY_V4, ipNet("198.51.100.0/24")
		return netlink.RuleAdd(r)
	})
	two := func(a, b string) func(*netlink.Route) {
		return func(r *netlink.Route) {
			r.Gw = nil
			r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: net.ParseIP(a)},
				{LinkIndex: r.LinkIndex, Gw: net.ParseIP(b)}}
			r.LinkIndex = 0
		}
	}
	gw.route(netlink.RouteAdd, "203.0.113.0/24", "", "eth0", two("192.0.2.2", "192.0.2.3"))
	gw.route(netlink.RouteAdd, "2001:db8:9::/48", "", "eth0", two("2001:db8::2", "2001:db8::3"))
	deadline := time.Now().Add(5 * time.Second) // Status is up to a second old
	for len(m.Status().Warnings) != 3 {
		if time.Now().After(deadline) {
			t.Fatalf("%q", m.Status().Warnings)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
