//go:build root

package hostlink

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/ethtool"
)

// inNamespace runs f on a thread in a new network namespace.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
	done := make(chan struct{})
	go func() {
		defer close(done) // also if f calls FailNow
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f(t)
	}()
	<-done
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestEnsureMakesThePair(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		c := testConfig()
		c.Queues = 5 // independent of the number of CPUs
		h := must[*HostLink](t)(Ensure(c))
		if !h.Created || h.Addr4 != netip.MustParseAddr("169.254.77.2") || h.Addr6 != netip.MustParseAddr("fd53::2") {
			t.Errorf("%+v", h)
		}
		for _, end := range []struct {
			name  string
			index int
			mac   [6]byte
		}{{"sluice0", h.Index, h.MAC}, {"sluice1", h.KernelIndex, h.KernelMAC}} {
			a := must[netlink.Link](t)(netlink.LinkByName(end.name)).Attrs()
			if a.Index != end.index || [6]byte(a.HardwareAddr) != end.mac || a.MTU != 1500 || a.Flags&net.FlagUp == 0 {
				t.Errorf("%s: %+v", end.name, a)
			}
			if ch := must[ethtool.Channels](t)(ethtool.ReadChannels(end.name)); ch.Rx != 5 || ch.Tx != 5 {
				t.Errorf("%s has %d receive and %d transmit queues", end.name, ch.Rx, ch.Tx)
			}
			on := must[map[string]bool](t)(ethtool.Features(end.name))
			for _, f := range ethtool.Offloads {
				if on[f] {
					t.Errorf("%s: %s is on", end.name, f)
				}
			}
		}
		if n := must[[]netlink.Addr](t)(netlink.AddrList(must[netlink.Link](t)(netlink.LinkByName("sluice0")),
			netlink.FAMILY_ALL)); len(n) != 0 {
			t.Errorf("the user end has addresses: %v", n)
		}
		for file, want := range map[string]string{
			"ipv4/conf/sluice1/rp_filter": "2", "ipv4/conf/sluice1/accept_local": "1",
			"ipv4/conf/sluice1/forwarding":       "1",
			"ipv4/conf/sluice1/accept_redirects": "0", "ipv4/conf/sluice1/send_redirects": "0",
			"ipv6/conf/sluice1/forwarding": "1", "ipv6/conf/sluice1/force_forwarding": "1",
			"ipv6/conf/sluice1/accept_ra": "0",
			"ipv6/conf/sluice1/autoconf":  "0", "ipv6/conf/sluice1/router_solicitations": "0",
			"ipv6/conf/sluice1/accept_dad":    "0",
			"ipv6/conf/sluice1/dad_transmits": "0", "ipv6/conf/sluice1/addr_gen_mode": "1",
			"ipv6/conf/sluice0/addr_gen_mode": "1", "ipv6/conf/sluice0/disable_ipv6": "1",
			"ipv4/conf/sluice0/forwarding": "0", "ipv4/conf/sluice0/arp_ignore": "8",
			"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0", // the node's, unchanged
		} {
			got, err := os.ReadFile("/proc/sys/net/" + file)
			if errors.Is(err, os.ErrNotExist) && path.Base(file) == "force_forwarding" {
				continue // before kernel 6.17
			}
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s = %q, want %s (%v)", file, got, want, err)
			}
		}
		for _, a := range must[[]netlink.Addr](t)(netlink.AddrList(must[netlink.Link](t)(netlink.LinkByName("sluice1")),
			netlink.FAMILY_V6)) {
			if a.IP.IsGlobalUnicast() && a.Flags&unix.IFA_F_DEPRECATED == 0 {
				t.Errorf("the kernel may choose %v as the source of an error", a.IP)
			}
		}
		for _, n := range must[[]netlink.Neigh](t)(netlink.NeighList(h.KernelIndex, netlink.FAMILY_ALL)) {
			if ip, _ := netip.AddrFromSlice(n.IP); ip.Unmap() == h.Addr4 || ip == h.Addr6 {
				if n.State != netlink.NUD_PERMANENT || [6]byte(n.HardwareAddr) != h.MAC {
					t.Errorf("neighbour %v is in state %#x", n, n.State)
				}
			}
		}
	})
}

// TestPacketsPassBothWays: packets from the kernel to the user end's address arrive at the user
// end, and packets from the user end reach a socket of the kernel, with the user end's, a client's,
// or the node's own address as their source.
func TestPacketsPassBothWays(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, s := range []string{"rp_filter", "arp_ignore"} { // a strict node
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/"+s, []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		lo := must[netlink.Link](t)(netlink.LinkByName("lo"))
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		node := must[*netlink.Addr](t)(netlink.ParseAddr("192.0.2.1/32"))
		if err := netlink.AddrAdd(lo, node); err != nil {
			t.Fatal(err)
		}
		h := must[*HostLink](t)(Ensure(testConfig()))
		// The route back to clients uses another interface, as on a real node.
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("203.0.113.0/24")),
			LinkIndex: lo.Attrs().Index}); err != nil {
			t.Fatal(err)
		}
		if err := h.RouteSNAT([]netip.Addr{netip.MustParseAddr("198.51.100.1"),
			netip.MustParseAddr("2001:db8:5::1")}); err != nil {
			t.Fatal(err)
		}
		wire := openWire(t, h.Index)
		for _, dst := range []string{"169.254.77.2", "fd53::2", "198.51.100.1", "2001:db8:5::1"} {
			c := must[net.Conn](t)(net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(dst), 4000).String()))
			must[int](t)(c.Write([]byte("to " + dst)))
			c.Close()
			if f := wire.receive(t, "to "+dst); [6]byte(f[0:6]) != h.MAC || [6]byte(f[6:12]) != h.KernelMAC {
				t.Errorf("%s: frame from %x to %x", dst, f[6:12], f[0:6])
			}
		}
		for _, tc := range []struct{ name, src, dst string }{
			{"the user end's address", "169.254.77.2", "169.254.77.1"},
			{"a client, route elsewhere", "203.0.113.9", "192.0.2.1"},
			{"the node's own address", "192.0.2.1", "169.254.77.1"},
			{"an SNAT address", "198.51.100.1", "192.0.2.1"},
			{"the user end's IPv6 address", "fd53::2", "fd53::1"},
		} {
			dst := netip.AddrPortFrom(netip.MustParseAddr(tc.dst), 5000)
			l := must[net.PacketConn](t)(net.ListenPacket("udp", dst.String()))
			in := make([]byte, 100)
			var n int
			var from net.Addr
			var err error
			for range 20 {
				// An IPv6 address accepts packets only after the kernel's work queue has handled
				// it, also without duplicate address detection (addrconf_dad_work,
				// net/ipv6/addrconf.c).
				wire.send(t, udpFrame(h, netip.MustParseAddr(tc.src), dst, []byte(tc.name)))
				_ = l.SetReadDeadline(time.Now().Add(250 * time.Millisecond))
				if n, from, err = l.ReadFrom(in); !errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
			}
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			} else if got := from.(*net.UDPAddr).AddrPort().Addr().Unmap(); got.String() != tc.src ||
				string(in[:n]) != tc.name {
				t.Errorf("%s: %q from %s", tc.name, in[:n], got)
			}
			l.Close()
		}
	})
}

func TestEnsureAdopts(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		first := must[*HostLink](t)(Ensure(testConfig()))
		c := testConfig()
		c.MTU, c.Queues = 1400, 1
		c.Addresses = []netip.Prefix{netip.MustParsePrefix("169.254.78.1/30")}
		second := must[*HostLink](t)(Ensure(c))
		if second.Created || second.Index != first.Index || second.MTU != 1400 {
			t.Errorf("%+v", second)
		}
		kern := must[netlink.Link](t)(netlink.LinkByName("sluice1"))
		if a := must[[]netlink.Addr](t)(netlink.AddrList(kern, netlink.FAMILY_ALL)); len(a) != 1 ||
			a[0].IP.String() != "169.254.78.1" {
			t.Errorf("addresses %v", a)
		}
		if kern.Attrs().MTU != 1400 {
			t.Errorf("MTU %d", kern.Attrs().MTU)
		}
		c.Queues = 2 // the number at its creation
		must[*HostLink](t)(Ensure(c))
		c.Queues = 3
		if _, err := Ensure(c); err == nil || !strings.Contains(err.Error(), "delete the pair") {
			t.Errorf("more queues than there is room for: %v", err)
		}
	})
}

// TestFindChangesNothing: Find returns the pair of another process, and changes nothing.
func TestFindChangesNothing(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		if h, err := Find(testConfig()); err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("before it is there: %+v, %v", h, err)
		}
		h := must[*HostLink](t)(Ensure(testConfig()))
		const setting = "/proc/sys/net/ipv4/conf/sluice1/rp_filter"
		if err := os.WriteFile(setting, []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
		c := testConfig()
		c.MTU = 1400
		c.Addresses = c.Addresses[:1]
		found := must[*HostLink](t)(Find(c))
		if found.Index != h.Index || found.KernelMAC != h.KernelMAC || found.MTU != 1500 || found.LockFD() != -1 {
			t.Errorf("found %+v, made %+v", found, h)
		}
		kern := must[netlink.Link](t)(netlink.LinkByName("sluice1"))
		if a := must[[]netlink.Addr](t)(netlink.AddrList(kern, netlink.FAMILY_ALL)); len(a) != 2 ||
			kern.Attrs().MTU != 1500 {
			t.Errorf("it has addresses %v, MTU %d now", a, kern.Attrs().MTU)
		}
		if v := must[[]byte](t)(os.ReadFile(setting)); strings.TrimSpace(string(v)) != "0" {
			t.Errorf("rp_filter is %q now", v)
		}
	})
}

func TestEnsureRefusesForeignInterface(t *testing.T) {
	add := func(t *testing.T, l netlink.Link) {
		t.Helper()
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T)
	}{
		{"a bridge", func(t *testing.T) { add(t, &netlink.Bridge{LinkAttrs: attrs("sluice1")}) }},
		{"half of another pair",
			func(t *testing.T) { add(t, &netlink.Veth{LinkAttrs: attrs("sluice0"), PeerName: "other"}) }},
		{"halves of two pairs", func(t *testing.T) {
			add(t, &netlink.Veth{LinkAttrs: attrs("sluice0"), PeerName: "x"})
			add(t, &netlink.Veth{LinkAttrs: attrs("sluice1"), PeerName: "y"})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				tc.make(t)
				before := must[[]netlink.Link](t)(netlink.LinkList())
				if _, err := Ensure(testConfig()); !errors.Is(err, ErrForeign) {
					t.Errorf("got %v", err)
				}
				if after := must[[]netlink.Link](t)(netlink.LinkList()); len(after) != len(before) {
					t.Error("interfaces were made or deleted")
				}
			})
		})
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		before := len(must[[]netlink.Link](t)(netlink.LinkList()))
		h := must[*HostLink](t)(Ensure(testConfig()))
		for range 2 {
			if err := h.Remove(); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(must[[]netlink.Link](t)(netlink.LinkList())); after != before {
			t.Errorf("%d interfaces, %d before", after, before)
		}
	})
}

func TestRouteSNATReplacesTheFormerList(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		h := must[*HostLink](t)(Ensure(testConfig()))
		list := func() (dsts []string) {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				for _, r := range must[[]netlink.Route](t)(
					netlink.RouteListFiltered(family, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL),
				) {
					dsts = append(dsts, r.Dst.String())
				}
			}
			return dsts
		}
		for _, step := range []struct{ addrs, want []string }{
			{[]string{"198.51.100.1", "198.51.100.2"}, []string{"198.51.100.1/32", "198.51.100.2/32"}},
			{[]string{"198.51.100.2", "2001:db8:5::1"}, []string{"198.51.100.2/32", "2001:db8:5::1/128"}},
			{nil, nil},
		} {
			var addrs []netip.Addr
			for _, a := range step.addrs {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			if err := h.RouteSNAT(addrs); err != nil {
				t.Fatal(err)
			}
			if got := list(); !slices.Equal(got, step.want) {
				t.Errorf("routes %v, want %v", got, step.want)
			}
		}
		h.Addr6 = netip.Addr{}
		if err := h.RouteSNAT([]netip.Addr{netip.MustParseAddr("2001:db8:5::1")}); err == nil {
			t.Error("a route without an address of the family")
		}
	})
}

// TestFormerAddresses: Former of an adopted pair has the former addresses of the user end.
func TestFormerAddresses(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		c := testConfig()
		before := must[*HostLink](t)(Ensure(c))
		c.Addresses = []netip.Prefix{netip.MustParsePrefix("169.254.78.1/30"), c.Addresses[1]}
		h := must[*HostLink](t)(Ensure(c))
		if !slices.Equal(h.Former, []netip.Addr{before.Addr4}) || len(before.Former) > 0 {
			t.Errorf("former %v, want %v; of a new pair %v", h.Former, before.Addr4, before.Former)
		}
		if h = must[*HostLink](t)(Ensure(c)); len(h.Former) > 0 {
			t.Errorf("once more: %v", h.Former)
		}
	})
}

// TestFormerAddressesStayRouted: while Ensure changes the addresses, the kernel always has a route
// to the user end's former addresses, and to SNAT addresses, by the pair.
func TestFormerAddressesStayRouted(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		c := testConfig()
		h := must[*HostLink](t)(Ensure(c))
		snat := netip.MustParseAddr("198.51.100.1")
		if err := h.RouteSNAT([]netip.Addr{snat}); err != nil {
			t.Fatal(err)
		}
		changes := make(chan netlink.RouteUpdate, 100)
		done := make(chan struct{})
		if err := netlink.RouteSubscribe(changes, done); err != nil {
			t.Fatal(err)
		}
		c.Addresses = []netip.Prefix{netip.MustParsePrefix("169.254.78.1/30"), netip.MustParsePrefix("fd54::1/126")}
		must[*HostLink](t)(Ensure(c))
		for _, a := range []netip.Addr{h.Addr4, h.Addr6, snat} {
			r, err := netlink.RouteGet(a.AsSlice())
			if err != nil || len(r) != 1 || r[0].LinkIndex != h.KernelIndex {
				t.Errorf("route to %s: %v, %v", a, r, err)
			}
		}
		// The order in which the kernel's routes changed: first the route to a former address, then
		// the end of its prefix.
		time.AfterFunc(100*time.Millisecond, func() { close(done) })
		routed := map[string]bool{}
		for u := range changes {
			if u.Dst == nil {
				continue
			}
			switch dst := u.Dst.String(); {
			case u.Type == unix.RTM_NEWROUTE && u.Protocol == Protocol:
				routed[dst] = true
			case u.Type == unix.RTM_DELROUTE && dst == "169.254.77.0/30" && !routed["169.254.77.2/32"],
				u.Type == unix.RTM_DELROUTE && dst == "fd53::/126" && !routed["fd53::2/128"]:
				t.Errorf("%s was removed before there was another route", dst)
			}
		}
		if len(routed) != 2 {
			t.Errorf("routes to %v were added, want 169.254.77.2 and fd53::2", routed)
		}
	})
}

// TestOrphanIsRefused: Ensure returns ErrOrphan if a pair with another name, which no process has,
// has an address of this one.
func TestOrphanIsRefused(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		c := testConfig()
		h := must[*HostLink](t)(Ensure(c))
		other := c
		other.Name, other.KernelName = "other0", "other1"
		h.lock.release() // the process has ended
		h.lock = nil
		if _, err := Ensure(other); !errors.Is(err, ErrOrphan) || !strings.Contains(err.Error(), c.Name) {
			t.Errorf("made beside an orphan: %v", err)
		}
		if l, err := find(other.Name); l != nil || err != nil {
			t.Errorf("it was made: %v, %v", l, err)
		}
		h = must[*HostLink](t)(Ensure(c))
		if err := h.Remove(); err != nil {
			t.Fatal(err)
		}
		must[*HostLink](t)(Ensure(other))
	})
}
