//go:build root

package neigh

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
)

// pair returns a gateway and a peer on one wire, and a mirror on the gateway.
func pair(t *testing.T, c Config) (gw, peer *space, m *mirror) {
	gw, peer = newSpace(t), newSpace(t)
	gw.veth("eth0", peer, "eth0")
	gw.address("eth0", "192.0.2.1/24", "2001:db8::1/64")
	peer.address("eth0", "192.0.2.2/24", "2001:db8::2/64", "192.0.2.3/24")
	settle(gw, peer)
	c.Links = []LinkConfig{{"eth0"}}
	return gw, peer, gw.follow(c)
}

func TestNeverSeenNeighbourIsResolved(t *testing.T) {
	gw, peer, m := pair(t, Config{})
	for dst, source := range map[string]string{"192.0.2.2": "192.0.2.1", "2001:db8::2": "2001:db8::1"} {
		t.Run(dst, func(t *testing.T) {
			if r := m.lookup(dst); r != (nexthop.Route{Kind: nexthop.OnLink, Source: addr(source)}) {
				t.Fatalf("before: %+v", r)
			}
			before := m.table.View().Generation
			began := time.Now()
			hop, id := m.resolved(dst)
			t.Logf("resolved in %v", time.Since(began))
			if r := m.lookup(dst); r != (nexthop.Route{Hop: id, Kind: nexthop.OnLink, Source: addr(source)}) {
				t.Errorf("after: %+v", r)
			}
			want := nexthop.Hop{
				Kind: nexthop.OnLink, Ready: true, MTU: 1500,
				DstMAC: peer.mac("eth0"), SrcMAC: gw.mac("eth0"), Addr: addr(dst),
			}
			if !hop.Same(&want) {
				t.Errorf("got %+v, want %+v", *hop, want)
			}
			if m.table.View().Generation != before {
				t.Error("a neighbour made a new generation")
			}
		})
	}
}

func TestGatewayHasItsHopAtOnce(t *testing.T) {
	for _, tc := range []struct{ name, dst, gw, host string }{
		{"IPv4", "198.51.100.0/24", "192.0.2.2", "198.51.100.7"},
		{"IPv6", "2001:db8:1::/48", "2001:db8::2", "2001:db8:1::7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gw, peer, m := pair(t, Config{})
			if r := m.lookup(tc.host); r.Kind != nexthop.Unreachable {
				t.Fatalf("before: %+v", r)
			}
			generation := m.table.View().Generation
			gw.route(netlink.RouteAdd, tc.dst, tc.gw, "")
			m.eventually("the route", func() bool { return m.lookup(tc.host).Kind == nexthop.OnLink })
			if m.table.View().Generation == generation {
				t.Error("a route did not make a new generation")
			}
			// The gateway is resolved without a request.
			id := m.lookup(tc.host).Hop
			m.eventually("the gateway", func() bool { return m.table.Hop(id).Ready })
			if h := m.table.Hop(id); h.DstMAC != peer.mac("eth0") || h.Addr != addr(tc.gw) {
				t.Errorf("hop %+v", h)
			}
			gw.route(netlink.RouteDel, tc.dst, tc.gw, "")
			m.eventually("unreachable again", func() bool { return m.lookup(tc.host) == unreachable })
		})
	}
}

func TestNewMACIsUsed(t *testing.T) {
	for _, dst := range []string{"192.0.2.2", "2001:db8::2"} {
		t.Run(dst, func(t *testing.T) {
			_, peer, m := pair(t, Config{})
			_, id := m.resolved(dst)
			view := m.table.View()
			peer.do(func() error {
				for _, s := range []string{"ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"} {
					if err := writeProc("/proc/sys/net/"+s, "1"); err != nil {
						return err
					}
				}
				return nil
			})
			// With arp_notify and ndisc_notify the change is announced: gratuitous ARP
			// and an unsolicited neighbour advertisement.
			began := time.Now()
			peer.setMAC("eth0", "02:00:00:00:aa:01")
			m.eventually("the new MAC", func() bool {
				return m.table.Hop(id).DstMAC == [6]byte{2, 0, 0, 0, 0xaa, 1}
			})
			t.Logf("used after %v", time.Since(began))
			if m.table.View() != view {
				t.Error("a MAC change made a new View")
			}
		})
	}
}

func TestDefaultRouteFlips(t *testing.T) {
	gw, _, m := pair(t, Config{})
	gw.route(netlink.RouteAdd, "0.0.0.0/0", "192.0.2.2", "")
	m.eventually("first default", func() bool { return m.lookup("203.0.113.9").Kind == nexthop.OnLink })
	first := m.lookup("203.0.113.9").Hop
	gw.route(netlink.RouteReplace, "0.0.0.0/0", "192.0.2.3", "")
	m.eventually("second default", func() bool {
		r := m.lookup("203.0.113.9")
		return r.Hop != first && m.table.Hop(r.Hop).Addr == addr("192.0.2.3")
	})
	if h := m.table.Hop(first); h == nil || h.Addr != addr("192.0.2.2") {
		t.Errorf("the old ID names another hop at once: %+v", h)
	}
}

func TestKindsOfRoutes(t *testing.T) {
	gw, other := newSpace(t), newSpace(t)
	gw.veth("eth0", other, "eth0")
	gw.veth("cni0", other, "cni0")
	gw.veth("host1", other, "host1")
	gw.address("eth0", "192.0.2.1/24", "2001:db8::1/64")
	gw.address("cni0", "10.244.0.1/24", "fd00:244::1/64")
	gw.address("host1", "169.254.77.1/30")
	for _, dev := range []string{"eth0", "cni0", "host1"} {
		other.address(dev)
	}
	settle(gw, other)
	via := func(kind int) func(*netlink.Route) { return func(r *netlink.Route) { r.Type = kind } }
	gw.route(netlink.RouteAdd, "198.51.100.0/28", "", "", via(unix.RTN_BLACKHOLE))
	gw.route(netlink.RouteAdd, "198.51.100.16/28", "", "", via(unix.RTN_UNREACHABLE))
	gw.route(netlink.RouteAdd, "198.51.100.32/28", "", "", via(unix.RTN_PROHIBIT))
	gw.route(netlink.RouteAdd, "203.0.113.0/24", "192.0.2.9", "", func(r *netlink.Route) { r.MTU = 1400 })
	gw.route(netlink.RouteAdd, "203.0.113.128/25", "10.244.0.9", "")

	host := &HostLink{KernelMAC: [6]byte{2, 1}, UserMAC: [6]byte{2, 2}, MTU: 9000}
	gw.do(func() error {
		l, err := netlink.LinkByName("host1")
		host.KernelIndex = l.Attrs().Index
		return err
	})
	m := gw.follow(Config{Links: []LinkConfig{{"absent"}, {"eth0"}}, HostLink: host})
	for _, tc := range []struct {
		dst  string
		kind nexthop.Kind
		mtu  uint16
	}{
		{"192.0.2.1", nexthop.Kernel, 9000}, // the gateway's own
		{"2001:db8::1", nexthop.Kernel, 9000},
		{"127.0.0.1", nexthop.Kernel, 9000},      // loopback: the kernel will refuse it
		{"10.244.0.7", nexthop.Kernel, 1500},     // behind a device that is not served
		{"fd00:244::7", nexthop.Kernel, 1500},    //
		{"203.0.113.200", nexthop.Kernel, 1500},  // the longer prefix wins
		{"203.0.113.7", nexthop.OnLink, 1400},    // via a gateway, the route's MTU
		{"192.0.2.77", nexthop.OnLink, 0},        // on the link, not known yet
		{"169.254.77.2", nexthop.Unreachable, 0}, // the user end's address on the host link
		{"198.51.100.1", nexthop.Unreachable, 0},
		{"198.51.100.17", nexthop.Unreachable, 0},
		{"198.51.100.33", nexthop.Unreachable, 0},
		{"192.0.2.255", nexthop.Unreachable, 0}, // broadcast
		{"224.0.0.1", nexthop.Unreachable, 0},
		{"fe80::1", nexthop.Unreachable, 0},
		{"ff02::1", nexthop.Unreachable, 0},
		{"100.64.0.1", nexthop.Unreachable, 0}, // no route
	} {
		t.Run(tc.dst, func(t *testing.T) {
			r := m.lookup(tc.dst)
			if r.Kind != tc.kind {
				t.Fatalf("kind %d, want %d", r.Kind, tc.kind)
			}
			if tc.mtu == 0 {
				if want := map[nexthop.Kind]nexthop.ID{nexthop.Unreachable: nexthop.NoRoute}[tc.kind]; r.Hop != want {
					t.Errorf("hop %d, want %d", r.Hop, want)
				}
				return
			}
			h := m.table.Hop(r.Hop)
			if h == nil || h.MTU != tc.mtu || h.Kind != tc.kind {
				t.Fatalf("hop %+v, want MTU %d", h, tc.mtu)
			}
			if tc.kind == nexthop.Kernel && (!h.Ready || h.DstMAC != host.KernelMAC || h.SrcMAC != host.UserMAC) {
				t.Errorf("hop %+v", h)
			}
			if tc.kind == nexthop.OnLink && h.Link != 1 {
				t.Errorf("link %d", h.Link)
			}
		})
	}
}

func TestDeviceDeletedAndMadeAgain(t *testing.T) {
	gw, peer, m := pair(t, Config{})
	m.resolved("192.0.2.2")
	gw.do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	m.eventually("no route", func() bool { return m.lookup("192.0.2.2") == unreachable })
	gw.veth("eth0", peer, "eth0")
	gw.address("eth0", "192.0.2.1/24")
	peer.address("eth0", "192.0.2.2/24")
	m.eventually("the route again", func() bool { return m.lookup("192.0.2.2").Kind == nexthop.OnLink })
	hop, _ := m.resolved("192.0.2.2")
	if hop.DstMAC != peer.mac("eth0") || hop.SrcMAC != gw.mac("eth0") {
		t.Errorf("hop of the old device: %+v", hop)
	}
}

// TestLinkDownAndUp: the kernel does not announce IPv4 routes that are removed with their
// interface.
func TestLinkDownAndUp(t *testing.T) {
	gw, _, m := pair(t, Config{})
	_, id := m.resolved("192.0.2.2")
	for range 3 {
		gw.do(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetDown(l)
		})
		m.eventually("no route", func() bool { return m.lookup("192.0.2.2") == unreachable })
		gw.do(func() error { return gw.up("eth0") })
		m.eventually("the same hop again", func() bool { return m.lookup("192.0.2.2").Hop == id })
		m.eventually("ready", func() bool { return m.table.Hop(id).Ready })
	}
}

func TestMTUAndMACOfOurLinkChangeInPlace(t *testing.T) {
	gw, _, m := pair(t, Config{})
	_, id := m.resolved("2001:db8::2")
	generation := m.table.View().Generation
	gw.do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, 1400)
	})
	m.eventually("the new MTU", func() bool { return m.table.Hop(id).MTU == 1400 })
	gw.setMAC("eth0", "02:00:00:00:bb:01")
	m.eventually("the new source MAC", func() bool {
		return m.table.Hop(id).SrcMAC == [6]byte{2, 0, 0, 0, 0xbb, 1}
	})
	if m.table.View().Generation != generation {
		t.Error("the generation changed")
	}
}

func TestFailedNeighbourIsNotReadyUntilItIsBack(t *testing.T) {
	gw, peer, m := pair(t, Config{})
	// Fail in a fraction of a second instead of three.
	gw.do(func() error {
		for _, s := range []string{"retrans_time_ms", "delay_first_probe_time"} {
			if err := writeProc("/proc/sys/net/ipv4/neigh/eth0/"+s, map[string]string{"retrans_time_ms": "30",
				"delay_first_probe_time": "0"}[s]); err != nil {
				return err
			}
		}
		return nil
	})
	_, id := m.resolved("192.0.2.3")
	// The peer stays on the wire but no longer answers for the address, and the test makes the
	// kernel notice that.
	peer.do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("192.0.2.3/24")
		return netlink.AddrDel(l, a)
	})
	gw.do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		mac := peerMAC(m.table.Hop(id))
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index,
			IP: netip.MustParseAddr("192.0.2.3").AsSlice(), State: netlink.NUD_PROBE, HardwareAddr: mac})
	})
	m.eventually("not ready", func() bool { return !m.table.Hop(id).Ready })
	peer.address("eth0", "192.0.2.3/24")
	if _, again := m.resolved("192.0.2.3"); again != id {
		t.Errorf("ID %d, was %d", again, id)
	}
}

// TestDeletedNeighbourIsResolvedAgain: a neighbour that an operator deletes fails; it must be
// resolved again without a request.
func TestDeletedNeighbourIsResolvedAgain(t *testing.T) {
	gw, _, m := pair(t, Config{})
	_, id := m.resolved("192.0.2.2")
	for range 3 {
		old := m.table.Hop(id)
		gw.do(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index,
				IP: netip.MustParseAddr("192.0.2.2").AsSlice()})
		})
		m.eventually("ready again", func() bool {
			h := m.table.Hop(id)
			return h != old && h.Ready // a new Hop, because it was not ready in between
		})
	}
}

// TestPermanentNeighbourStaysPermanent: an operator's entry for an address that answers no requests
// is used and not changed.
func TestPermanentNeighbourStaysPermanent(t *testing.T) {
	gw, _, m := pair(t, Config{})
	silent := &netlink.Neigh{IP: netip.MustParseAddr("192.0.2.9").AsSlice(), State: netlink.NUD_PERMANENT,
		HardwareAddr: []byte{2, 0, 0, 0, 0, 9}}
	gw.do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		silent.LinkIndex = l.Attrs().Index
		return netlink.NeighSet(silent)
	})
	if h, _ := m.resolved("192.0.2.9"); h.DstMAC != [6]byte{2, 0, 0, 0, 0, 9} {
		t.Errorf("hop %+v", h)
	}
	m.resolved("192.0.2.2") // requests are handled in order, so the first one is done
	gw.do(func() error {
		all, err := netlink.NeighList(silent.LinkIndex, netlink.FAMILY_V4)
		for _, n := range all {
			if n.IP.Equal(silent.IP) && n.State != netlink.NUD_PERMANENT {
				t.Errorf("the entry's state is %#x now, want NUD_PERMANENT, %#x", n.State, netlink.NUD_PERMANENT)
			}
		}
		return err
	})
}

// ofBothFamilies runs f in a space for a silent address of each family on eth0, with the kernel's
// own interface.
func ofBothFamilies(gw *space, f func(k *rtnetlink, dev int, a netip.Addr) error) {
	gw.do(func() error {
		k, err := openKernel(slog.New(slog.DiscardHandler), nil)
		if err != nil {
			return err
		}
		defer k.close()
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, ip := range []string{"192.0.2.9", "2001:db8::9"} {
			if err := f(k.(*rtnetlink), l.Attrs().Index, netip.MustParseAddr(ip)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestUseLeavesPermanentNeighbours: use itself must not change permanent entries, because a packet
// may need an entry before its announcement has been read.
func TestUseLeavesPermanentNeighbours(t *testing.T) {
	gw, _, _ := pair(t, Config{})
	ofBothFamilies(gw, func(k *rtnetlink, dev int, a netip.Addr) error {
		if err := k.use(dev, a); err != nil { // no state about it yet
			return err
		}
		if n, err := k.neighbour(dev, a); err != nil || n.State == netlink.NUD_NONE {
			t.Errorf("%s: %#v, %v after its first use, want one in which it is resolved", a, n, err)
		}
		entry := &netlink.Neigh{LinkIndex: dev, IP: a.AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: []byte{2, 0, 0, 0, 0, 9}}
		if err := netlink.NeighSet(entry); err != nil {
			return err
		}
		if err := k.use(dev, a); err != nil {
			return err
		}
		if n, err := k.neighbour(dev, a); err != nil || n.State != netlink.NUD_PERMANENT {
			t.Errorf("%s: %#v, %v, want NUD_PERMANENT, %#x", a, n, err, netlink.NUD_PERMANENT)
		}
		return nil
	})
}

// TestUseLeavesFlags: use does not change entries that are learned externally or managed by the
// kernel.
func TestUseLeavesFlags(t *testing.T) {
	gw, _, _ := pair(t, Config{})
	mac := []byte{2, 0, 0, 0, 0, 9}
	ofBothFamilies(gw, func(k *rtnetlink, dev int, a netip.Addr) error {
		for _, entry := range []netlink.Neigh{
			{State: netlink.NUD_STALE, HardwareAddr: mac, Flags: netlink.NTF_EXT_LEARNED},
			{State: netlink.NUD_STALE, HardwareAddr: mac, FlagsExt: netlink.NTF_EXT_MANAGED},
			{State: netlink.NUD_STALE, HardwareAddr: mac, Flags: netlink.NTF_EXT_LEARNED,
				FlagsExt: netlink.NTF_EXT_MANAGED},
			{State: netlink.NUD_STALE, HardwareAddr: mac},
		} {
			entry.LinkIndex, entry.IP = dev, a.AsSlice()
			if err := netlink.NeighSet(&entry); err != nil {
				return err
			}
			before, err := k.neighbour(dev, a)
			if err != nil {
				return err
			}
			if err := k.use(dev, a); err != nil {
				t.Errorf("%s: %v", before, err)
			}
			after, err := k.neighbour(dev, a)
			if err != nil || after.Flags != before.Flags || after.FlagsExt != before.FlagsExt {
				t.Errorf("%s: flags %#x and %#x before, %#v, %v afterwards", a, before.Flags, before.FlagsExt, after,
					err)
			}
			if err := netlink.NeighDel(&entry); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestAddresses(t *testing.T) {
	gw, _, m := pair(t, Config{})
	changed := func() {
		t.Helper()
		select {
		case <-m.AddressesChanged():
		case <-time.After(time.Second):
			t.Fatal("no notice")
		}
	}
	changed() // the first reading
	index := func(prefix string) int {
		return slices.IndexFunc(m.Addresses(),
			func(a Address) bool { return a.Prefix == netip.MustParsePrefix(prefix) })
	}
	for _, p := range []string{"192.0.2.1/24", "2001:db8::1/64", "127.0.0.1/8"} {
		if index(p) < 0 {
			t.Errorf("%s is missing in %v", p, m.Addresses())
		}
	}
	if a := m.Addresses()[index("192.0.2.1/24")]; a != (Address{"eth0", 0, netip.MustParsePrefix("192.0.2.1/24"), true,
		false, true}) {
		t.Errorf("%+v", a)
	}
	if a := m.Addresses()[index("127.0.0.1/8")]; a.Global || a.Link != noLink {
		t.Errorf("%+v", a)
	}
	gw.address("eth0", "192.0.2.5/24")
	changed()
	if i := index("192.0.2.5/24"); i < 0 || !m.Addresses()[i].Secondary {
		t.Errorf("the new address: %v", m.Addresses())
	}
}

func TestLinksChange(t *testing.T) {
	gw, peer := newSpace(t), newSpace(t)
	gw.veth("eth0", peer, "eth0")
	gw.address("eth0", "192.0.2.1/24")
	peer.address("eth0", "192.0.2.2/24")
	settle(gw, peer)
	m := gw.follow(Config{})
	if r := m.lookup("192.0.2.2"); r.Kind != nexthop.Kernel || m.table.Hop(r.Hop).DstMAC != [6]byte{} {
		t.Fatalf("without links and host link: %+v", r)
	}
	if err := m.SetLinks([]LinkConfig{{"eth0"}}, &HostLink{MTU: 1500, KernelMAC: [6]byte{2}}); err != nil {
		t.Fatal(err)
	}
	m.eventually("on link", func() bool { return m.lookup("192.0.2.2").Kind == nexthop.OnLink })
	if r := m.lookup("192.0.2.1"); r.Kind != nexthop.Kernel || m.table.Hop(r.Hop).DstMAC != [6]byte{2} {
		t.Errorf("the gateway's own address: %+v", r)
	}
	m.resolved("192.0.2.2")
	if err := m.SetLinks([]LinkConfig{{"eth0"}, {"eth0"}}, nil); err == nil {
		t.Error("a link given twice was accepted")
	}
}

func TestPolicyRulesAreReported(t *testing.T) {
	gw, _, m := pair(t, Config{})
	if w := m.Status().Warnings; len(w) != 0 {
		t.Fatalf("a fresh namespace: %v", w)
	}
	gw.do(func() error {
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family, r.Src = 100, 100, netlink.FAMILY_V4, ipNet("198.51.100.0/24")
		return netlink.RuleAdd(r)
	})
	m.eventually("a warning", func() bool { return len(m.Status().Warnings) == 1 })
}

// TestSilentMACChange: the MAC address of a neighbour in use changes without an announcement, just
// after the kernel has confirmed the old one. The kernel's own forwarding notices it after 4 s to 9
// s if the entry was stale, and up to 45 s later if not.
func TestSilentMACChange(t *testing.T) {
	_, peer, m := pair(t, Config{})
	ids := map[string]nexthop.ID{}
	for _, dst := range []string{"192.0.2.2", "2001:db8::2"} {
		_, ids[dst] = m.resolved(dst)
	}
	const within = 10 * time.Second // VerifyInterval, a tick, three requests
	changed := time.Now()
	peer.setMAC("eth0", "02:00:00:00:aa:01")
	for len(ids) > 0 && time.Since(changed) < within {
		for dst, id := range ids {
			hop := m.table.Hop(id)
			if hop.Use(); hop.Ready && hop.DstMAC == [6]byte{2, 0, 0, 0, 0xaa, 1} {
				t.Logf("%s: known after %v", dst, time.Since(changed))
				delete(ids, dst)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	for dst := range ids {
		t.Errorf("%s: the new MAC address is not known after %v", dst, within)
	}
}
