package neigh

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

func address(index int, prefix string, change ...func(*netlink.Addr)) netlink.Addr {
	a := netlink.Addr{IPNet: ipNet(prefix), LinkIndex: index}
	for _, c := range change {
		c(&a)
	}
	return a
}

func addrFlags(f int) func(*netlink.Addr) { return func(a *netlink.Addr) { a.Flags |= f } }
func scope(s int) func(*netlink.Addr)     { return func(a *netlink.Addr) { a.Scope = s } }
func src(ip string) func(*netlink.Route)  { return func(r *netlink.Route) { r.Src = net.ParseIP(ip) } }

// TestSourceOfRoute: the source address that the kernel would use.
func TestSourceOfRoute(t *testing.T) {
	eth0 := func(prefixes ...string) (all []netlink.Addr) {
		for _, p := range prefixes {
			all = append(all, address(10, p))
		}
		return all
	}
	two6 := eth0("fd00:1::1/64", "2001:db8:1::1/64")
	for _, tc := range []struct {
		name  string
		addrs []netlink.Addr
		route netlink.Route
		want  string // empty: none
	}{
		{"primary", eth0("192.0.2.1/24", "198.51.100.1/24"), route("10.0.0.0/8"), "192.0.2.1"},
		{"of the interface", append(eth0("192.0.2.1/24"), address(11, "198.51.100.1/24")), route("10.0.0.0/8", dev(11)),
			"198.51.100.1"},
		{"of the VLAN device", append(eth0("192.0.2.1/24"), address(20, "198.51.100.1/24")),
			route("10.0.0.0/8", dev(20)), "198.51.100.1"},
		{"in the network of the gateway", eth0("192.0.2.1/24", "198.51.100.1/24"),
			route("10.0.0.0/8", via("198.51.100.9")), "198.51.100.1"},
		{"in the network of the destination", eth0("192.0.2.1/24", "198.51.100.1/24"), route("198.51.100.0/24"),
			"198.51.100.1"},
		{"by an IPv6 gateway", eth0("192.0.2.1/24", "198.51.100.1/24", "2001:db8::1/64"),
			route("198.51.100.0/24", func(r *netlink.Route) {
				r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fe80::1")}
			}), "198.51.100.1"},
		{"preferred by the route", eth0("192.0.2.1/24", "198.51.100.1/24"), route("10.0.0.0/8", src("198.51.100.1")),
			"198.51.100.1"},
		{"preferred, of another interface", append(eth0("192.0.2.1/24"), address(12, "198.51.100.1/32")),
			route("10.0.0.0/8", src("198.51.100.1")), "198.51.100.1"},
		{"preferred by a multipath route", eth0("192.0.2.1/24"), route("10.0.0.0/8", src("198.51.100.1"),
			paths(&netlink.NexthopInfo{LinkIndex: 10})), "198.51.100.1"},
		{"preferred, of the other family", eth0("192.0.2.1/24"), route("10.0.0.0/8", src("2001:db8::1")), "192.0.2.1"},
		{"preferred loopback", eth0("192.0.2.1/24"), route("10.0.0.0/8", src("127.0.0.1")), "192.0.2.1"},
		{"secondary", []netlink.Addr{address(10, "192.0.2.5/24", addrFlags(unix.IFA_F_SECONDARY)),
			address(10, "192.0.2.1/24")}, route("10.0.0.0/8"), "192.0.2.1"},
		{"scope link", []netlink.Addr{address(10, "169.254.0.1/16", scope(unix.RT_SCOPE_LINK)),
			address(10, "192.0.2.1/24")}, route("10.0.0.0/8"), "192.0.2.1"},
		{"none on the interface", []netlink.Addr{address(11, "192.0.2.1/24")}, route("10.0.0.0/8"), ""},
		{"none of the family", eth0("2001:db8::1/64"), route("10.0.0.0/8"), ""},
		{"not served", []netlink.Addr{address(12, "192.0.2.1/24")}, route("10.0.0.0/8", dev(12)), ""},
		{"blackhole", eth0("192.0.2.1/24"), route("10.0.0.0/8", kind(unix.RTN_BLACKHOLE)), ""},

		{"IPv6, first of equals", eth0("2001:db8:1::2/64", "2001:db8:1::1/64"), route("2001:db8:2::/64"),
			"2001:db8:1::2"},
		{"IPv6, longest match", eth0("2001:db8:8000::1/64", "2001:db8:1::1/64"), route("2001:db8:2::/48"),
			"2001:db8:1::1"},
		{"IPv6, no longer than its network", eth0("2001:db8:1::1/32", "2001:db8:2::1/48"), route("2001:db8:1::/64"),
			"2001:db8:2::1"},
		{"IPv6, the gateway does not matter", two6, route("2001:db8:2::/48", via("fd00:1::9")), "2001:db8:1::1"},
		{"IPv6, unique local", two6, route("fd00:2::/48"), "fd00:1::1"},
		{"IPv6, default", two6, route("::/0", via("fe80::1")), "2001:db8:1::1"},
		{"IPv6, temporary", []netlink.Addr{address(10, "2001:db8:2::2/64", addrFlags(unix.IFA_F_TEMPORARY)),
			address(10, "2001:db8:1::1/64")}, route("2001:db8:2::/64"), "2001:db8:1::1"},
		{"IPv6, deprecated", []netlink.Addr{address(10, "2001:db8:2::2/64", addrFlags(unix.IFA_F_DEPRECATED)),
			address(10, "2001:db8:1::1/64")}, route("2001:db8:2::/64"), "2001:db8:1::1"},
		{"IPv6, tentative", []netlink.Addr{address(10, "2001:db8:2::2/64", addrFlags(unix.IFA_F_TENTATIVE)),
			address(10, "2001:db8:1::1/64")}, route("2001:db8:2::/64"), "2001:db8:1::1"},
		{"IPv6, link-local", []netlink.Addr{address(10, "fe80::1/64", scope(unix.RT_SCOPE_LINK))},
			route("2001:db8:2::/64"), ""},
		{"IPv6, preferred by the route", two6, route("2001:db8:2::/64", src("fd00:1::1")), "fd00:1::1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			devices := devicesOf([]netlink.Link{
				dummy(10, "eth0"), dummy(11, "eth1"), dummy(12, "cni0"), vlan(20, "eth0.100", 10, 100),
			}, []LinkConfig{{"eth0"}, {"eth1"}})
			targets := compileRoutes([]netlink.Route{tc.route}, devices, sourcesOf(addressesOf(tc.addrs, devices)), nil)
			prefix, _ := prefixOf(&tc.route)
			want := header.Addr{}
			if tc.want != "" {
				want = addr(tc.want)
			}
			if got := targets[prefix].source; got != want {
				t.Errorf("got %v, want %q", got, tc.want)
			}
		})
	}
}

func TestSourcesOfAllLinks(t *testing.T) {
	devices := devicesOf([]netlink.Link{dummy(10, "eth0"), dummy(11, "eth1"), dummy(12, "cni0")},
		[]LinkConfig{{"eth0"}, {"eth1"}})
	own := sourcesOf(addressesOf([]netlink.Addr{
		address(10, "192.0.2.1/24"), address(10, "192.0.3.1/24"), address(10, "203.0.113.1/32"),
		address(10, "192.0.2.9/24", addrFlags(unix.IFA_F_SECONDARY)),
		address(11, "198.51.100.1/24"), address(11, "2001:db8::1/64"), address(12, "10.244.0.1/24"),
	}, devices))
	got := own.all(compileRoutes([]netlink.Route{
		route("192.0.2.0/24"), route("192.0.3.0/24"), route("10.244.0.0/24", dev(12)),
		route("10.0.0.0/8", src("10.255.0.1")),
	}, devices, own, nil), devices)
	// eth1 has no route now; 203.0.113.1 is no source.
	want := []netip.Addr{}
	for _, a := range []string{"10.255.0.1", "192.0.2.1", "192.0.3.1", "198.51.100.1", "2001:db8::1"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNewPrimaryAddress: a new primary address makes a new generation, also for host routes, and is
// reported.
func TestNewPrimaryAddress(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		if r := m.lookup("10.0.0.7"); r != (nexthop.Route{Kind: nexthop.OnLink}) || len(m.Sources()) != 0 {
			t.Fatalf("without addresses: %+v, %v", r, m.Sources())
		}
		m.table.Resolve(addr("10.0.0.7"))
		k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent("10.0.0.7", netlink.NUD_REACHABLE, 2, 7, 7, 7, 7,
			7)}}
		m.settle(time.Second)
		for _, primary := range []string{"192.0.2.1", "192.0.2.2"} {
			select {
			case <-m.AddressesChanged(): // from earlier changes
			default:
			}
			before := m.table.View().Generation
			k.set(func() { k.top.addrs = []netlink.Addr{address(10, primary+"/24")} })
			k.ch <- []event{{kind: topologyChanged}}
			m.settle(time.Second)
			for _, dst := range []string{"10.0.0.8", "10.0.0.7"} {
				if r := m.lookup(dst); r.Source != addr(primary) {
					t.Errorf("%s: %+v, want %s", dst, r, primary)
				}
			}
			if m.lookup("10.0.0.7").Hop == 0 {
				t.Error("the host route is lost")
			}
			if m.table.View().Generation == before {
				t.Error("the generation did not change")
			}
			if len(m.AddressesChanged()) == 0 ||
				!slices.Equal(m.Sources(), []netip.Addr{netip.MustParseAddr(primary)}) {
				t.Errorf("sources %v", m.Sources())
			}
		}
		before := m.table.View().Generation
		k.set(func() {
			k.top.addrs = append(k.top.addrs, address(10, "192.0.2.9/24", addrFlags(unix.IFA_F_SECONDARY)))
		})
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		if m.table.View().Generation != before {
			t.Error("a secondary address made a new generation")
		}
	})
}

// TestPreferredSourceOnForeignInterface: a preferred source on an interface that is not served
// changes Sources, not Addresses.
func TestPreferredSourceOnForeignInterface(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		k.set(func() { k.top.addrs = []netlink.Addr{address(10, "192.0.2.1/24")} })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		<-m.AddressesChanged()
		k.set(func() { k.top.routes = append(k.top.routes, route("10.9.0.0/16", src("10.255.0.1"))) })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		if len(m.AddressesChanged()) == 0 || len(m.Sources()) != 2 {
			t.Errorf("no notice of %v", m.Sources())
		}
	})
}
