//go:build root

package announce

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/bench/topo"
)

// iBGP: the local preference arrives, a cordoned node's routes are of the lowest and have the
// community GRACEFUL_SHUTDOWN (RFC 8326), and an excluded node's go after they had it.
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
		l.write(internal + "apiVersion: v1\nkind: Node\nmetadata: {labels: " +
			"{node.kubernetes.io/exclude-from-external-load-" +
			"balancers: ''}}\n")
		pref("0", seven)
		l.routed(vip, false, 10*time.Second)
		l.write(internal)
		l.routed(vip, true, 10*time.Second)
	})
}

// onlyLinkLocal replaces the link-local addresses of a host by one: an unnumbered peer has one.
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
protocol bgp un {
  local as 64501; neighbor fe80::1 as 64500; interface "eth0"; passive;
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
 address-family ipv4 unicast
  neighbor fe80::1 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor fe80::1 activate
 exit-address-family
`)
		l.write(pools + `
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: un}
spec: {myASN: 64500, interface: front0, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`)
		l.start()
		l.routed(vip6+"/128", true, 20*time.Second)
		l.routed(vip, true, 20*time.Second)
		l.answers(vip6)
		l.answers(vip4)
	})
}
