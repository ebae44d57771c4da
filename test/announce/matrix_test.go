//go:build root

package announce

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/topo"
)

// iBGP: the local preference arrives. Routes of a cordoned node have the lowest one and the
// community GRACEFUL_SHUTDOWN (RFC 8326), routes of the last resort also have MED 1, and routes of
// an excluded node have the community before they are withdrawn.
func TestInternal(t *testing.T) {
	onlyFull(t)
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind, flags: []string{"--drain-delay", "1s"}})
		l.startRouter(birdHead+`
protocol bgp four {
  local CLIENT4 as 64500; neighbor GATEWAY4 as 64500; passive; ipv4 { import all; export none; };
}
`, `
log file /dev/null
router bgp 64500
 bgp router-id CLIENT4
 neighbor GATEWAY4 remote-as 64500
 neighbor GATEWAY4 passive
`)
		internal := pools + `
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64500, peerAddress: CLIENT4, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
spec: {localPref: 250, communities: ["64500:7"]}
---
`
		l.write(internal)
		l.start()
		l.routed(vip, true, 20*time.Second)
		pref := func(n, community string) {
			t.Helper()
			if kind == "bird" {
				l.asked("show route all "+vip, "BGP.local_pref: "+n, community)
			} else {
				l.asked("show bgp ipv4 unicast "+vip4, "localpref "+n, community)
			}
		}
		seven := map[string]string{"bird": "(64500,7)", "frr": "64500:7"}[kind]
		pref("250", seven)
		l.write(internal + "apiVersion: v1\nkind: Node\nspec: {unschedulable: true}\n")
		pref("0", map[string]string{"bird": "(65535,0)", "frr": "graceful-shutdown"}[kind])
		l.stays(time.Second, "cordoned")
		l.write(internal)
		pref("250", seven)
		must(t, refuse(l.Gateway, l.Backends[0].Addr4(), true)) // the last resort
		pref("0", map[string]string{"bird": "BGP.med: 1", "frr": "metric 1"}[kind])
		l.stays(time.Second, "the last resort")
		must(t, refuse(l.Gateway, l.Backends[0].Addr4(), false))
		pref("250", seven)
		l.write(internal + "apiVersion: v1\nkind: Node\nmetadata: {labels: " +
			"{node.kubernetes.io/exclude-from-external-load-" +
			"balancers: ''}}\n")
		pref("0", seven)
		l.routed(vip, false, 10*time.Second)
		l.write(internal)
		l.routed(vip, true, 20*time.Second)
	})
}

// onlyLinkLocal replaces the link-local addresses of a host by a single one, as an unnumbered peer
// has.
func (l *lab) onlyLinkLocal(h *topo.Host, address netip.Prefix) {
	l.t.Helper()
	dev := h.Interfaces[0].Name
	must(l.t, h.Run(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		list, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for i := range list {
			if list[i].IP.IsLinkLocalUnicast() {
				err = errors.Join(err, netlink.AddrDel(link, &list[i]))
			}
		}
		return err
	}))
	must(l.t, h.AddAddresses(dev, address))
}

// An unnumbered peer: the router's link-local address is found, and IPv4 is routed by an IPv6 next
// hop (RFC 8950).
func TestUnnumbered(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind})
		must(t, l.Gateway.AddAddresses("front0", netip.MustParsePrefix("fe80::1/64")))
		l.onlyLinkLocal(l.Clients[0], netip.MustParsePrefix("fe80::a/64"))
		l.startRouter(birdHead+`
protocol bfd { interface "*" { interval 100 ms; multiplier 3; }; }
protocol bgp un {
  local as 64501; neighbor fe80::1 as 64500; interface "eth0"; passive; bfd on;
  ipv4 { import all; export none; extended next hop on; }; ipv6 { import all; export none; };
}
`, `
log file /dev/null
router bgp 64501
 bgp router-id CLIENT4
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor fe80::1 remote-as 64500
 neighbor fe80::1 interface eth0
 neighbor fe80::1 passive
 neighbor fe80::1 capability extended-nexthop
 neighbor fe80::1 bfd 3 100 100
 address-family ipv4 unicast
  neighbor fe80::1 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor fe80::1 activate
 exit-address-family
`)
		l.write(pools + `
apiVersion: sluice.dev/v1alpha1
kind: BFDProfile
metadata: {name: fast}
spec: {receiveInterval: 100, transmitInterval: 100}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: un}
spec: {myASN: 64500, interface: front0, connectTime: 1s, bfdProfile: fast}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`)
		l.start()
		l.routed(vip6+"/128", true, 20*time.Second)
		l.bfdUp()
		l.settle()
		if p, _ := l.peer(); p.BFD != "up" {
			t.Errorf("%+v", p)
		}
		l.answers(vip6)
		l.answers(vip4)
	})
}

// A multihop session: a router without BGP is between the gateway and its peer. Without
// ebgpMultiHop the session does not come up, because its packets have a TTL of 1.
func TestMultiHop(t *testing.T) {
	onlyFull(t)
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind, far: true})
		front := l.Gateway.Interfaces[0].Addr4.Masked()
		must(t, l.Clients[0].Route(front, l.Router.Interfaces[1].Addr4.Addr()))
		must(t, l.Router.Route(netip.MustParsePrefix("203.0.113.0/24"), l.Gateway.Addr4()))
		l.startRouter(birdHead+`
protocol static { ipv4; route `+front.String()+` via `+l.Router.Interfaces[1].Addr4.Addr().String()+`; }
protocol bgp four {
  local CLIENT4 as 64501; neighbor GATEWAY4 as 64500; multihop 2; passive; ipv4 { import all; export none; };
}
`, `
log file /dev/null
router bgp 64501
 bgp router-id CLIENT4
 no bgp ebgp-requires-policy
 neighbor GATEWAY4 remote-as 64500
 neighbor GATEWAY4 ebgp-multihop 2
 neighbor GATEWAY4 passive
`)
		objects := func(more string) {
			l.write(pools + `
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, connectTime: 1s` + more + `}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`)
		}
		objects("")
		l.start()
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			if has, err := l.router.HasRoute(netip.MustParsePrefix(vip)); has || err != nil {
				t.Fatalf("a route without ebgpMultiHop (%v)", err)
			}
			must(t, topo.Pause(l.ctx, 50*time.Millisecond))
		}
		objects(", ebgpMultiHop: true")
		l.routed(vip, true, 20*time.Second)
		l.answers(vip4)
	})
}

// The timers of a peer: the session has the hold time and the keepalive time of the peer object.
// The hold time alone withdraws the routes of a gateway that vanishes. After connectTime the
// announcer tries again to reach a router that is not there.
func TestTimers(t *testing.T) {
	onlyFull(t)
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind})
		l.write(pools + `
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, holdTime: 3s, keepaliveTime: 1s, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`)
		l.start()
		l.within(10*time.Second, "an attempt that fails", func() (bool, error) {
			v, err := l.ours.Ask(l.ctx)
			return err == nil && len(v.Peers) == 1 && !v.Peers[0].Up && v.Peers[0].State == "ACTIVE", err
		})
		text := sessionOf(kind, false, false)
		l.startRouter(text, text)
		t.Logf("a session %v after the router began", l.routed(vip, true, 5*time.Second).Round(time.Millisecond))
		if kind == "bird" {
			l.asked("show protocols all four", "/3\n", "/1\n")
		} else {
			l.asked("show bgp neighbors", "Hold time is 3 seconds, keepalive interval is 1 seconds")
		}
		// Keepalives come in time: the session outlives several hold times.
		l.stays(8*time.Second, "idle")
		took := l.gone(func() error { return l.Gateway.Unplug(l.Gateway.Interfaces[0].Name) })
		t.Logf("%s, hold time 3 s: the route went %v after the gateway was gone", kind, took.Round(time.Millisecond))
		if took < 1500*time.Millisecond {
			t.Errorf("it went after %v: not by the hold time", took)
		}
	})
}
