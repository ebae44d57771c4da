//go:build root

package announce

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPage: BIRD accepts the configuration in docs/reach.md.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reach.md")
	must(t, err)
	_, after, found := strings.Cut(string(page), "BIRD 2:\n\n```\n")
	text, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatal("docs/reach.md has no configuration of BIRD 2")
	}
	file := filepath.Join(t.TempDir(), "bird.conf")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	must(t, packages.CheckBIRD(t.Context(), file))
}

// birdHead is the common head of BIRD's configurations.
const birdHead = `
router id CLIENT4;
log stderr all;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
`

// There are two eBGP sessions: one over IPv4, with MD5, and one over IPv6, which carries routes of
// both families. Each prefix arrives with its communities, and the VIPs answer by these routes
// only.
func TestRoutes(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind})
		l.startRouter(birdHead+`
protocol bgp four {
  local CLIENT4 as 64501; neighbor GATEWAY4 as 64500; passive; password "secret"; ipv4 { import all; export all; };
}
protocol bgp six {
  local CLIENT6 as 64501; neighbor GATEWAY6 as 64500; passive; ipv4 { import all; export none; };
  ipv6 { import all; export all; };
}
`, `
log file /dev/null
router bgp 64501
 bgp router-id CLIENT4
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
 neighbor GATEWAY4 remote-as 64500
 neighbor GATEWAY4 passive
 neighbor GATEWAY4 password secret
 neighbor GATEWAY6 remote-as 64500
 neighbor GATEWAY6 passive
 address-family ipv4 unicast
  neighbor GATEWAY4 activate
  neighbor GATEWAY6 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor GATEWAY6 activate
 exit-address-family
`)
		l.write(pools + `
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, password: secret, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: six}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT6, dualStackAddressFamily: true, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: Community
metadata: {name: names}
spec: {communities: [{name: backup, value: "64500:7"}]}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: each}
spec: {communities: [backup, "large:64500:1:2"]}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: together}
spec: {aggregationLength: 26, aggregationLengthV6: 64, peers: [six], ipAddressPoolSelectors: [{matchLabels: {tier: front}}]}
`)
		l.start()
		for _, p := range []string{vip4 + "/32", vip6 + "/128", "203.0.113.0/26", "2001:db8:f::/64"} {
			l.routed(p, true, 20*time.Second)
		}
		if kind == "bird" {
			l.asked("show route all protocol four", vip4+"/32", "BGP.community: (64500,7)",
				"BGP.large_community: (64500, 1, 2)")
			l.asked("show route all protocol six", vip6+"/128", vip4+"/32", "203.0.113.0/26", "BGP.next_hop: "+
				l.Gateway.Addr4().String())
		} else {
			l.asked("show bgp ipv4 unicast "+vip4, "64500:7", "64500:1:2", "2 available")
			l.asked("show bgp ipv6 unicast "+vip6, "64500:7", "from "+l.Gateway.Addr6().String())
		}
		l.answers(vip4)
		l.answers(vip6)
	})
}
