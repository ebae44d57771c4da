//go:build root

package neigh

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestSourceEqualsTheKernels compares sources, on two links and in both families, with the kernel's
// choice for its own packets.
func TestSourceEqualsTheKernels(t *testing.T) {
	gw, peer := newSpace(t), newSpace(t)
	for _, dev := range []string{"front0", "back0"} {
		gw.veth(dev, peer, dev)
		peer.address(dev)
	}
	gw.address("front0", "10.71.0.1/24", "10.71.0.9/24", "2001:db8:71::1/64")
	gw.address("back0", "10.72.0.1/24", "10.73.0.1/24", "fd72::1/64", "2001:db8:72::1/64")
	gw.address("lo", "10.255.0.1/32", "fd00:255::1/128")
	settle(gw, peer)
	gw.route(netlink.RouteAdd, "0.0.0.0/0", "10.71.0.2", "")
	gw.route(netlink.RouteAdd, "10.100.0.0/16", "10.73.0.2", "")
	gw.route(netlink.RouteAdd, "10.101.0.0/16", "10.72.0.2", "", src("10.255.0.1"))
	gw.route(netlink.RouteAdd, "::/0", "2001:db8:71::2", "")
	gw.route(netlink.RouteAdd, "fd73::/64", "2001:db8:72::2", "")
	gw.route(netlink.RouteAdd, "2001:db8:73::/64", "fd72::2", "")
	gw.route(netlink.RouteAdd, "fd74::/64", "fd72::2", "", src("fd00:255::1"))
	m := gw.follow(Config{Links: []LinkConfig{{"front0"}, {"back0"}}})
	for dst, want := range map[string]string{
		"203.0.113.1": "10.71.0.1", "10.71.0.7": "10.71.0.1", "10.72.0.7": "10.72.0.1", "10.73.0.7": "10.73.0.1",
		"10.100.0.1": "10.73.0.1", "10.101.0.1": "10.255.0.1",
		"2001:db9::1": "2001:db8:71::1", "2001:db8:71::7": "2001:db8:71::1", "fd72::7": "fd72::1",
		"2001:db8:72::7": "2001:db8:72::1",
		"fd73::1":        "fd72::1", "2001:db8:73::1": "2001:db8:72::1", "fd74::1": "fd00:255::1",
	} {
		gw.do(func() error {
			r, err := netlink.RouteGet(net.ParseIP(dst))
			if err == nil && !r[0].Src.Equal(net.ParseIP(want)) {
				t.Errorf("%s: the kernel chooses %v: the test is wrong", dst, r[0].Src)
			}
			return err
		})
		if r := m.lookup(dst); r.Source != addr(want) {
			t.Errorf("%s: %v, want %s", dst, r.Source, want)
		}
	}
	// The first address of a network is removed, and the next one replaces it.
	generation := m.table.View().Generation
	gw.do(func() error {
		l, err := netlink.LinkByName("front0")
		if err != nil {
			return err
		}
		if err := writeProc("/proc/sys/net/ipv4/conf/front0/promote_secondaries", "1"); err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("10.71.0.1/24")
		return netlink.AddrDel(l, a)
	})
	m.eventually("the promoted address", func() bool { return m.lookup("10.71.0.7").Source == addr("10.71.0.9") })
	if m.table.View().Generation == generation {
		t.Error("the generation did not change")
	}
}
