package neigh

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
)

func dummy(index int, name string) *netlink.Dummy {
	a := netlink.NewLinkAttrs()
	a.Index, a.Name, a.MTU, a.Flags = index, name, 1500, net.FlagUp
	a.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(index)}
	a.NetNsID = -1
	return &netlink.Dummy{LinkAttrs: a}
}

func vlan(index int, name string, parent, id int, change ...func(*netlink.Vlan)) *netlink.Vlan {
	v := &netlink.Vlan{LinkAttrs: dummy(index, name).LinkAttrs, VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	v.ParentIndex, v.MTU = parent, 1496
	for _, c := range change {
		c(v)
	}
	return v
}

// TestVLANDevices uses the links of a kernel with 802.1Q, which the lab's kernel does not have.
func TestVLANDevices(t *testing.T) {
	devices := devicesOf([]netlink.Link{
		vlan(21, "eth0.100.200", 20, 200), // listed before the device below it
		dummy(10, "eth0"), dummy(11, "eth1"), dummy(12, "br0"),
		vlan(20, "eth0.100", 10, 100),
		vlan(22, "eth0.100.200.300", 21, 300),
		vlan(23, "eth1.7", 11, 7),
		vlan(24, "br0.5", 12, 5),
		vlan(25, "svlan", 10, 5, func(v *netlink.Vlan) { v.VlanProtocol = netlink.VLAN_PROTOCOL_8021AD }),
		vlan(28, "cvlan", 25, 6),
		vlan(26, "far", 10, 5, func(v *netlink.Vlan) { v.NetNsID = 3 }),
		vlan(27, "orphan", 99, 5),
	}, []LinkConfig{{"eth1"}, {"eth0"}, {"missing"}})
	none := [2]nexthop.Tag{}
	for _, tc := range []struct {
		name  string
		index int
		link  int
		vlans uint8
		vlan  [2]nexthop.Tag
	}{
		{"the link itself", 10, 1, 0, none},
		{"one tag", 20, 1, 1, [2]nexthop.Tag{{TPID: 0x8100, TCI: 100}}},
		{"two tags, outer first", 21, 1, 2, [2]nexthop.Tag{{TPID: 0x8100, TCI: 100}, {TPID: 0x8100, TCI: 200}}},
		{"three tags do not fit", 22, noLink, 0, none},
		{"another link", 23, 0, 1, [2]nexthop.Tag{{TPID: 0x8100, TCI: 7}}},
		{"on a bridge", 24, noLink, 0, none},
		{"802.1ad", 25, 1, 1, [2]nexthop.Tag{{TPID: 0x88a8, TCI: 5}}},
		{"802.1Q on 802.1ad", 28, 1, 2, [2]nexthop.Tag{{TPID: 0x88a8, TCI: 5}, {TPID: 0x8100, TCI: 6}}},
		{"lower device in another namespace", 26, noLink, 0, none},
		{"lower device unknown", 27, noLink, 0, none},
		{"not served", 12, noLink, 0, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := devices[tc.index]
			if d.link != tc.link || d.vlans != tc.vlans || d.vlan != tc.vlan {
				t.Errorf("got link %d, %d tags %v", d.link, d.vlans, d.vlan)
			}
		})
	}
}

func route(dst string, change ...func(*netlink.Route)) netlink.Route {
	r := netlink.Route{Dst: ipNet(dst), Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN, LinkIndex: 10}
	for _, c := range change {
		c(&r)
	}
	return r
}

func via(gw string) func(*netlink.Route) { return func(r *netlink.Route) { r.Gw = net.ParseIP(gw) } }
func metric(m int) func(*netlink.Route)  { return func(r *netlink.Route) { r.Priority = m } }
func table(n int) func(*netlink.Route)   { return func(r *netlink.Route) { r.Table = n } }
func kind(n int) func(*netlink.Route)    { return func(r *netlink.Route) { r.Type = n } }
func dev(index int) func(*netlink.Route) { return func(r *netlink.Route) { r.LinkIndex = index } }
func flags(f int) func(*netlink.Route)   { return func(r *netlink.Route) { r.Flags |= f } }
func paths(p ...*netlink.NexthopInfo) func(*netlink.Route) {
	return func(r *netlink.Route) { r.LinkIndex, r.MultiPath = 0, p }
}

func TestCompileRoutes(t *testing.T) {
	devices := devicesOf([]netlink.Link{
		dummy(10, "eth0"), dummy(11, "eth1"), dummy(12, "flannel.1"), dummy(13, "sluice1"),
		vlan(20, "eth0.100", 10, 100),
	}, []LinkConfig{{"eth0"}, {"eth1"}})
	down := devices[11]
	down.up = false
	devices[11] = down
	host := &HostLink{KernelIndex: 13, MTU: 1500}
	onLink := func(d int32, gw string) target {
		t := target{kind: nexthop.OnLink, dev: d}
		if gw != "" {
			t.via = addr(gw)
		}
		return t
	}
	nh := func(index int, gw string, f int) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{LinkIndex: index, Gw: net.ParseIP(gw), Flags: f}
	}
	kernel := target{kind: nexthop.Kernel, mtu: 1500}
	none := target{}
	for _, tc := range []struct {
		name   string
		routes []netlink.Route
		dst    string
		want   target
	}{
		{"on link", []netlink.Route{route("10.0.0.0/8")}, "10.1.1.1", onLink(10, "")},
		{"gateway", []netlink.Route{route("10.0.0.0/8", via("192.0.2.1"))}, "10.1.1.1", onLink(10, "192.0.2.1")},
		{"IPv6 gateway of link-local scope", []netlink.Route{route("::/0", via("fe80::1"))}, "2001:db8::1",
			onLink(10, "fe80::1")},
		{"IPv4 via IPv6", []netlink.Route{route("10.0.0.0/8", func(r *netlink.Route) {
			r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fe80::1")}
		})}, "10.1.1.1", onLink(10, "fe80::1")},
		{"VLAN device", []netlink.Route{route("10.0.0.0/8", dev(20))}, "10.1.1.1", onLink(20, "")},
		{"longest prefix", []netlink.Route{route("10.0.0.0/8"), route("10.1.0.0/16", via("192.0.2.1"))}, "10.1.1.1",
			onLink(10, "192.0.2.1")},
		{"lowest metric", []netlink.Route{route("10.0.0.0/8", metric(20)), route("10.0.0.0/8", metric(10),
			via("192.0.2.1"))}, "10.1.1.1", onLink(10, "192.0.2.1")},
		{"first of equals", []netlink.Route{route("10.0.0.0/8", via("192.0.2.1")), route("10.0.0.0/8")}, "10.1.1.1",
			onLink(10, "192.0.2.1")},
		{"dead route is skipped", []netlink.Route{route("10.0.0.0/8", flags(unix.RTNH_F_DEAD)),
			route("10.0.0.0/8", metric(9), via("192.0.2.1"))}, "10.1.1.1", onLink(10, "192.0.2.1")},
		{"dead route, shorter prefix", []netlink.Route{route("10.1.0.0/16", flags(unix.RTNH_F_DEAD)),
			route("10.0.0.0/8")}, "10.1.1.1", onLink(10, "")},
		{"interface down", []netlink.Route{route("10.0.0.0/8", dev(11))}, "10.1.1.1", none},
		{"route with TOS", []netlink.Route{route("10.0.0.0/8", func(r *netlink.Route) { r.Tos = 4 })}, "10.1.1.1",
			none},
		{"other table", []netlink.Route{route("10.0.0.0/8", table(100))}, "10.1.1.1", none},
		{"device not served", []netlink.Route{route("10.0.0.0/8", dev(12))}, "10.1.1.1", kernel},
		{"device unknown", []netlink.Route{route("10.0.0.0/8", dev(99))}, "10.1.1.1", target{kind: nexthop.Kernel}},
		{"encapsulated on a served link",
			[]netlink.Route{route("10.0.0.0/8", func(r *netlink.Route) { r.Encap = &netlink.MPLSEncap{} })}, "10.1.1.1",
			kernel},
		{"the host link itself", []netlink.Route{route("10.0.0.0/8", dev(13))}, "10.1.1.1", none},
		{"route MTU on a device that is not served", []netlink.Route{route("10.0.0.0/8", dev(12),
			func(r *netlink.Route) { r.MTU = 1450 })}, "10.1.1.1", target{kind: nexthop.Kernel, mtu: 1450}},
		{"local", []netlink.Route{route("10.1.1.1/32", table(unix.RT_TABLE_LOCAL), kind(unix.RTN_LOCAL))}, "10.1.1.1",
			target{kind: nexthop.Kernel}},
		{"anycast", []netlink.Route{route("2001:db8::/128", table(unix.RT_TABLE_LOCAL), kind(unix.RTN_ANYCAST))},
			"2001:db8::", target{kind: nexthop.Kernel}},
		{"local is preferred to main", []netlink.Route{route("10.1.1.1/32"), route("10.1.1.1/32",
			table(unix.RT_TABLE_LOCAL), kind(unix.RTN_LOCAL))}, "10.1.1.1", target{kind: nexthop.Kernel}},
		{"broadcast", []netlink.Route{route("10.0.0.0/8"), route("10.255.255.255/32", table(unix.RT_TABLE_LOCAL),
			kind(unix.RTN_BROADCAST))}, "10.255.255.255", none},
		{"blackhole inside", []netlink.Route{route("10.0.0.0/8"), route("10.1.0.0/16", kind(unix.RTN_BLACKHOLE))},
			"10.1.1.1", none},
		{"throw", []netlink.Route{route("10.0.0.0/8"), route("10.1.0.0/16", kind(unix.RTN_THROW))}, "10.1.1.1", none},
		{"table default is the last resort", []netlink.Route{route("0.0.0.0/0", table(unix.RT_TABLE_DEFAULT),
			via("192.0.2.9"))}, "10.1.1.1", onLink(10, "192.0.2.9")},
		{"table main hides a longer prefix in default", []netlink.Route{route("0.0.0.0/0", via("192.0.2.1")),
			route("10.0.0.0/8", table(unix.RT_TABLE_DEFAULT), via("192.0.2.9"))}, "10.1.1.1", onLink(10, "192.0.2.1")},
		{"IPv6 AnyIP hides a longer prefix in main", []netlink.Route{route("2001:db8::/64"), route("2001:db8::/32",
			table(unix.RT_TABLE_LOCAL), kind(unix.RTN_LOCAL))}, "2001:db8::1", target{kind: nexthop.Kernel}},
		{"IPv4 AnyIP does not", []netlink.Route{route("10.1.0.0/16"), route("10.0.0.0/8", table(unix.RT_TABLE_LOCAL),
			kind(unix.RTN_LOCAL))}, "10.1.1.1", onLink(10, "")},
		{"multipath, first",
			[]netlink.Route{route("10.0.0.0/8", paths(nh(10, "192.0.2.1", 0), nh(10, "192.0.2.2", 0)))}, "10.1.1.1",
			onLink(10, "192.0.2.1")},
		{"multipath, first is dead", []netlink.Route{route("10.0.0.0/8", paths(nh(11, "192.0.2.1", unix.RTNH_F_DEAD),
			nh(10, "192.0.2.2", 0)))}, "10.1.1.1", onLink(10, "192.0.2.2")},
		{"multipath, all dead", []netlink.Route{route("10.0.0.0/8", paths(nh(11, "192.0.2.1", unix.RTNH_F_DEAD)))},
			"10.1.1.1", none},
		{"multicast", []netlink.Route{route("0.0.0.0/0", via("192.0.2.1"))}, "239.1.1.1", none},
		{"limited broadcast", []netlink.Route{route("0.0.0.0/0", via("192.0.2.1"))}, "255.255.255.255", none},
		{"link-local", []netlink.Route{route("::/0", via("fe80::1")), route("fe80::/64")}, "fe80::9", none},
		{"default", []netlink.Route{route("0.0.0.0/0", via("192.0.2.1"))}, "203.0.113.1", onLink(10, "192.0.2.1")},
		{"families apart", []netlink.Route{route("0.0.0.0/0", via("192.0.2.1"))}, "2001:db8::1", none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := longest(compileRoutes(tc.routes, devices, nil, host), netip.MustParseAddr(tc.dst))
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func compileRoutes(
	routes []netlink.Route, devices map[int]device, own sources, host *HostLink,
) map[netip.Prefix]target {
	c := newRouteCompiler(0, devices, own, host)
	for i := range routes {
		c.add(&routes[i])
	}
	return c.targets()
}

// longest is the slow, obvious lookup.
func longest(targets map[netip.Prefix]target, a netip.Addr) (t target) {
	best := -1
	for p, v := range targets {
		if p.Contains(a) && p.Bits() > best {
			best, t = p.Bits(), v
		}
	}
	return t
}

func TestMinMTU(t *testing.T) {
	for _, tc := range []struct{ a, b, want uint16 }{{0, 0, 0}, {0, 9, 9}, {9, 0, 9}, {8, 9, 8}, {9, 8, 8}} {
		if got := minMTU(tc.a, tc.b); got != tc.want {
			t.Errorf("minMTU(%d, %d) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
	for mtu, want := range map[int]uint16{-1: 0, 0: 0, 1500: 1500, 65535: 65535, 65536: 0} {
		if got := clampMTU(mtu); got != want {
			t.Errorf("clampMTU(%d) = %d, want %d", mtu, got, want)
		}
	}
}
