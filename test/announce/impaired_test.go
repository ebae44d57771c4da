//go:build root

package announce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/routers"
	"sluice.dev/sluice/test/bed/topo"
)

// The router of the segment spreads packets over equal routes of its gateways.
const (
	birdGateways = `
router id CLIENT4;
log stderr all;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol bfd { interface "*" { interval 100 ms; multiplier 3; }; }
protocol kernel { ipv4 { export where source = RTS_BGP; }; merge paths on; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; merge paths on; }
template bgp gateways {
  local CLIENT4 as 64501; passive; connect retry time 1; error wait time 1, 1; @BFD
  ipv4 { import all; export none; }; ipv6 { import all; export none; };
}
`
	birdGateway = "protocol bgp from gateways { neighbor GATEWAY as 64500; }\n"
	frrGateways = `
log file /dev/null
router bgp 64501
 bgp router-id CLIENT4
 no bgp ebgp-requires-policy
 neighbor gateways peer-group
 neighbor gateways remote-as 64500
 neighbor gateways passive
 @BFD
 address-family ipv6 unicast
  neighbor gateways activate
 exit-address-family
`
	frrGateway    = " neighbor GATEWAY peer-group gateways\n"
	routerObjects = `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: near}
spec: {addresses: [10.71.0.192-10.71.0.254, "fd71::200-fd71::2ff"]}
---
apiVersion: sluice.dev/v1alpha1
kind: BFDProfile
metadata: {name: fast}
spec: {receiveInterval: 100, transmitInterval: 100}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, connectTime: 1s, dualStackAddressFamily: true@BFD}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`
)

// impairedMost bounds the time until another gateway is preferred after the routes of one have
// gone: the gateway checks each second, and its announcer waits for another second.
const impairedMost = 3 * time.Second

// impairedPatience is long, so that a slow connection does not count as failed: a gateway without a
// route refuses a connection at once.
const impairedPatience = 900 * time.Millisecond

// refuse makes a host refuse packets to an address, or stop refusing.
func refuse(h *topo.Host, a netip.Addr, refused bool) error {
	return h.Run(func() error {
		r := &netlink.Route{Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
			Type: unix.RTN_UNREACHABLE}
		if refused {
			return netlink.RouteAdd(r)
		}
		return netlink.RouteDel(r)
	})
}

// routed is a segment whose client gets its routes to VIPs from BIRD or FRR.
type routed struct {
	*segment
	router *routers.Router
}

func newRouted(t *testing.T, kind string, vips int) *routed {
	t.Helper()
	return newRoutedOf(t, kind, newSegment(t, 2, vips), false)
}

// newRoutedOf starts the router of a segment, with BFD or without.
func newRoutedOf(t *testing.T, kind string, of *segment, bfd bool) *routed {
	t.Helper()
	s := &routed{segment: of}
	for _, family := range []string{"ipv4", "ipv6"} {
		must(t, s.client.SetSysctl("net."+family+".fib_multipath_hash_policy", "1"))
	}
	words := map[string][3]string{"bird": {birdGateways, birdGateway, "bfd on;"},
		"frr": {frrGateways, frrGateway, "neighbor gateways bfd 3 100 100"}}[kind]
	text, line, session, profile := words[0], words[1], words[2], ", bfdProfile: fast"
	if !bfd {
		session, profile = "", ""
		if kind == "frr" {
			session = "!"
		}
	}
	for _, h := range append([]*topo.Host{s.Net.Gateway}, s.Clients[1:]...) {
		text += strings.ReplaceAll(line, "GATEWAY", h.Addr4().String())
	}
	fill := func(text, bfd string) string {
		return replaceWords(text, "CLIENT4", s.client.Addr4().String(), "@BFD", bfd)
	}
	start := packages.BIRD
	if kind == "frr" {
		start = packages.FRR
	}
	dir := filepath.Join(s.dir, "router")
	must(t, os.MkdirAll(dir, 0o700))
	var err error
	s.router, err = start(s.client, dir, fill(text, session))
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("router:\n%s", s.router.Log())
		}
		check(t, s.router.Stop())
	})
	must(t, os.WriteFile(filepath.Join(s.dir, "objects.yaml"), []byte(fill(routerObjects, profile)), 0o600))
	return s
}

// by waits until the client's route to a VIP has exactly some gateways as next hops, and returns
// how long that took.
func (s *routed) by(vip netip.Addr, most time.Duration, gateways ...*member) time.Duration {
	s.t.Helper()
	var want []netip.Addr
	for _, m := range gateways {
		a := m.Addr4()
		if vip.Is6() {
			a = m.Addr6()
		}
		want = append(want, a)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	return s.within(most, fmt.Sprintf("the route to %v by %v", vip, want), func() error {
		got, err := s.router.NextHops(netip.PrefixFrom(vip, vip.BitLen()))
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is by %v", got)
		}
		return err
	})
}

// TestImpaired: one of two gateways loses its routes to the endpoints of a Service, in one family.
// The other VIPs stay with both. If the other one also loses them, both announce the VIP.
func TestImpaired(t *testing.T) {
	t.Parallel()
	beside(t, func(t *testing.T, kind string) {
		s := newRouted(t, kind, 2)
		s.patience = impairedPatience
		one, other := s.gateways[0], s.gateways[1]
		a4, a6 := near(0)
		b4, _ := near(1)
		second := netip.MustParseAddr("10.71.0.150")
		b := s.Backends[0]
		must(t, b.AddAddresses(b.Interfaces[0].Name, netip.PrefixFrom(second, 24)))
		_, err := b.ServeOn("second", port, second)
		must(t, err)
		for _, m := range s.gateways {
			must(t, m.gate.Apply(launch.Service{Name: "web1", Port: port, VIPs: []string{b4.String()},
				Endpoints: []launch.Endpoint{{Addr: second, Port: port, Node: "other"}}}))
		}
		both := func(vips ...netip.Addr) {
			t.Helper()
			for _, vip := range vips {
				s.by(vip, 30*time.Second, one, other)
			}
		}
		both(a4, a6, b4)
		s.within(10*time.Second, "the VIP to answer", func() error {
			return s.connect(a4, machine.Slower(time.Second))
		})

		out := s.stream(a4, impairedMost+time.Second, func() error { return refuse(one.Host, b.Addr4(), true) })
		report(t, "one gateway without routes to a Service's endpoints, until no connection fails", impairedMost,
			[]time.Duration{out})
		s.by(a4, time.Second, other)
		both(a6, b4)
		s.said(one, a4, view.LastResort, "the kernel has no route")

		// No gateway is better: both announce it, and the other VIPs are unchanged.
		must(t, refuse(other.Host, b.Addr4(), true))
		both(a4, a6, b4)
		s.said(other, a4, view.LastResort, "the kernel has no route")

		// Without a route to any backend a gateway's VIPs also stay, if no other gateway is better.
		for _, m := range s.gateways {
			must(t, refuse(m.Host, second, true))
			must(t, refuse(m.Host, b.Addr6(), true))
		}
		must(t, topo.Pause(s.ctx, impairedMost))
		both(a4, a6, b4)
		must(t, refuse(one.Host, b.Addr4(), false))
		took := s.by(a4, 30*time.Second, one)
		t.Logf("the one that has its routes again is preferred after %v", took)
		must(t, s.connect(a4, machine.Slower(5*time.Second)))
	})
}

// said waits until a gateway's announcer shows a VIP with a state and a reason.
func (s *segment) said(m *member, vip netip.Addr, state, why string) {
	s.t.Helper()
	s.within(5*time.Second, fmt.Sprintf("%s to say of %v: %s, %s", m.name, vip, state, why), func() error {
		v, err := m.ask()
		if err != nil {
			return err
		}
		for i := range v.VIPs {
			for _, l := range v.VIPs[i].To {
				if v.VIPs[i].Address == vip && l.State == state && strings.Contains(l.Why, why) {
					return nil
				}
			}
		}
		return fmt.Errorf("it says %+v", v.VIPs)
	})
}

// TestLayer2Impaired: the owner of a VIP loses its route to the endpoint, or health checks get no
// answers. Then the other gateway owns the VIP, unless it is no better.
func TestLayer2Impaired(t *testing.T) {
	t.Parallel()
	whole := t
	s := newSegment(t, 2, 1)
	s.patience = impairedPatience
	vip, _ := near(0)
	b := s.Backends[0]
	s.settled(vip)
	for name, c := range map[string]struct {
		most time.Duration
		cut  func(m *member, cut bool) error
		why  string
		slow bool
	}{
		"no route": {impairedMost, func(m *member, cut bool) error { return refuse(m.Host, b.Addr4(), cut) },
			"the kernel has no route", false},
		"no answer": {6 * time.Second, func(m *member, cut bool) error { return refuse(b, m.Addr4(), cut) },
			"healthy by this gateway's checks", true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.slow {
				onlyFull(t)
			}
			owner, other := s.gateways[0], s.gateways[1]
			if l, err := other.line(vip); err == nil && l.State == view.Announced {
				owner, other = other, owner
			}
			out := s.stream(vip, c.most+2*time.Second, func() error { return c.cut(owner, true) })
			report(whole, name+", until no connection fails", c.most, []time.Duration{out})
			s.said(other, vip, view.Announced, "")
			s.said(owner, vip, view.Standby, c.why)
			must(t, c.cut(owner, false))
			s.within(30*time.Second, "the owner to have it again", func() error {
				l, err := owner.line(vip)
				if err == nil && l.State != view.Announced {
					err = fmt.Errorf("%+v", l)
				}
				return err
			})
			s.settled(vip) // a connection that is opened while the VIP moves may get an RST
			must(t, s.connect(vip, machine.Slower(5*time.Second)))
		})
	}
	for _, m := range s.gateways {
		must(t, refuse(m.Host, b.Addr4(), true))
	}
	s.within(10*time.Second, "one to have it where nobody reaches the endpoint", func() error {
		var lines []view.Line
		for _, m := range s.gateways {
			l, err := m.line(vip)
			if err != nil {
				return err
			}
			lines = append(lines, l)
		}
		slices.SortFunc(lines, func(a, b view.Line) int { return strings.Compare(a.State, b.State) })
		if lines[0].State != view.LastResort || lines[1].State != view.Standby {
			return fmt.Errorf("%+v", lines)
		}
		return nil
	})
}
