//go:build root

package announce

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/launch"
)

// pageConfig returns the router configuration in docs/reach.md, adapted to the lab.
func pageConfig(t *testing.T, kind string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reach.md")
	must(t, err)
	head := map[string]string{"bird": "BIRD 2:\n\n```\n", "frr": "FRR:\n\n```\n"}[kind]
	_, after, found := strings.Cut(string(page), head)
	text, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatalf("docs/reach.md has no configuration of %s", kind)
	}
	return replaceWords(text, "10.0.0.1", "GATEWAY4")
}

// manyRoutes is a router's configuration with n routes of its own.
func manyRoutes(kind string, n int) string {
	var b strings.Builder
	prefix := func(i int) string { return fmt.Sprintf("100.%d.%d.%d/32", 64+i>>16, i>>8&255, i&255) }
	if kind == "bird" {
		b.WriteString("protocol static {\n ipv4;\n")
		for i := range n {
			fmt.Fprintf(&b, " route %s blackhole;\n", prefix(i))
		}
		b.WriteString("}\n")
		return b.String()
	}
	b.WriteString("router bgp 64501\n no bgp network import-check\n address-family ipv4 unicast\n")
	for i := range n {
		fmt.Fprintf(&b, "  network %s\n", prefix(i))
	}
	return b.String()
}

// A router that sends more routes than the limit does not fill the announcer: the session ends, the
// status has the reason, and it does not begin again at once. With the configuration of
// docs/reach.md the same router sends none, and has the route.
func TestTooManyRoutes(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := newLab(t, config{kind: kind})
		n := 20_000
		if kind == "bird" {
			n = few(1_000_000, n)
		}
		page, routes := pageConfig(t, kind), manyRoutes(kind, n)
		all := map[string]string{"bird": replaceWords(page, "export none", "export all"),
			"frr": replaceWords(page, "  neighbor gateways route-map none out\n", "")}[kind]
		if all == page {
			t.Fatalf("the configuration has no filter:\n%s", page)
		}
		if kind == "frr" { // by default it sends no routes
			all += " exit-address-family\n no bgp ebgp-requires-policy\nexit\n"
		}
		l.startRouter(all+routes, all+routes)
		l.write(objectsOf(false, false))
		l.start()
		var pid int
		l.within(60*time.Second, "the session to end by the limit", func() (bool, error) {
			v, err := l.ours.Ask(l.ctx)
			if err != nil || len(v.Peers) != 1 {
				return false, err
			}
			pid = v.PID
			why := v.Peers[0].Why
			return !v.Peers[0].Up && strings.Contains(why, "more than 10000 routes") &&
					strings.Contains(why, "tried again at") && len(v.Problems) == 1 && v.Problems[0].Reason == "PrefixLimit",
				fmt.Errorf("%+v %+v", v.Peers, v.Problems)
		})
		l.routed(vip, false, 5*time.Second)
		peak := peakRSS(t, pid)
		t.Logf("%s sends %d routes: the announcer had %d MiB at most", kind, n, peak>>20)
		if peak > 160<<20 {
			t.Errorf("the announcer had %d MiB, want 160 at most", peak>>20)
		}
		must(t, l.router.Stop())
		page += map[string]string{"frr": " exit-address-family\nexit\n"}[kind]
		l.startRouter(page+routes, page+routes)
		l.write(replaceWords(objectsOf(false, false), "connectTime: 1s", "connectTime: 2s")) // ends the wait
		l.routed(vip, true, 60*time.Second)
	})
}

// peakRSS returns the peak resident memory of a process, in bytes.
func peakRSS(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.Atoi(f[1])
			must(t, err)
			return kib << 10
		}
	}
	t.Fatalf("no VmHWM:\n%s", text)
	return 0
}

// addManagement joins gateway and client by an interface that the gateway does not serve.
func (l *lab) addManagement() {
	l.t.Helper()
	var peer *os.File
	must(l.t, l.Clients[0].Run(func() (err error) {
		peer, err = os.Open("/proc/thread-self/ns/net")
		return err
	}))
	defer peer.Close()
	up := func(address string) error {
		link, err := netlink.LinkByName("mgmt0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(address)
		return errors.Join(err, netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
	}
	must(l.t, l.Gateway.Run(func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "mgmt0"
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "mgmt0",
			PeerNamespace: netlink.NsFd(int(peer.Fd()))}), up("10.99.0.1/24"))
	}))
	must(l.t, l.Clients[0].Run(func() error { return up("10.99.0.2/24") }))
}

const besideObjects = pools + `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: beside}
spec: {addresses: [10.99.0.48/28]}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: beside}
spec: {myASN: 64500, peerASN: 64501, peerAddress: 10.99.0.2, connectTime: 1s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
---
apiVersion: sluice.dev/v1alpha1
kind: L2Advertisement
metadata: {name: beside}
spec: {ipAddressPools: [beside]}
`

// No packets arrive by an interface that the gateway does not serve: a peer there gets no route,
// and at layer 2 the gateway does not answer there. The status reports both.
func TestInterfaceNotServed(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		keys := filepath.Join(t.TempDir(), "key")
		must(t, os.WriteFile(keys, []byte(key+"\n"), 0o600))
		l := newLab(t, config{kind: kind, flags: []string{"--layer2-key", keys, "--layer2-join", "300ms"}})
		l.addManagement()
		const near = "10.99.0.50"
		l.apply(launch.Service{Name: "web", Port: port, VIPs: []string{vip4, vip6, near}})
		l.startRouter(sessionOf("bird", false, false)+`
protocol bgp beside { local as 64501; neighbor 10.99.0.1 as 64500; passive; ipv4 { import all; export none; }; }
`, sessionOf("frr", false, false)+" neighbor 10.99.0.1 remote-as 64500\n neighbor 10.99.0.1 passive\n")
		l.write(besideObjects)
		l.start()
		l.routed(vip, true, 20*time.Second)
		l.within(20*time.Second, "what is left out to be said", func() (bool, error) {
			v, err := l.ours.Ask(l.ctx)
			if err != nil {
				return false, err
			}
			said, up := 0, 0
			for _, p := range v.Problems {
				if p.Reason == "NotServed" && strings.Contains(p.Note, "mgmt0") {
					said++
				}
			}
			for _, p := range v.Peers {
				if p.Up {
					up++
				}
			}
			return said == 2 && up == 2 && notAnnounced(v, vip4, "beside") && notAnnounced(v, near, ""),
				fmt.Errorf("%+v", v)
		})
		time.Sleep(time.Second) // routes must not arrive; a link needs that long to join
		out, err := l.router.Ask(l.ctx, map[string]string{"bird": "show route protocol beside",
			"frr": "show bgp ipv4 unicast"}[kind])
		must(t, err)
		if kind == "bird" && strings.Contains(out, vip4) || strings.Contains(out, "10.99.0.1") {
			t.Errorf("the peer by mgmt0 is told of a route:\n%s", out)
		}
		if conn, err := l.Clients[0].Dial(l.ctx, "udp", near+":9"); err == nil {
			_, _ = conn.Write([]byte("x"))
			conn.Close()
		}
		time.Sleep(200 * time.Millisecond)
		must(t, l.Clients[0].Run(func() error {
			list, err := netlink.NeighList(0, netlink.FAMILY_V4)
			for _, n := range list {
				if a, _ := netip.AddrFromSlice(n.IP); a.Unmap().String() == near && len(n.HardwareAddr) > 0 {
					t.Errorf("somebody answers for %s: %v", near, n)
				}
			}
			return err
		}))
	})
}

// notAnnounced reports whether a VIP is not announced to a peer, or at layer 2, because of mgmt0.
func notAnnounced(v *view.View, vip, to string) bool {
	for i := range v.VIPs {
		for _, line := range v.VIPs[i].To {
			if v.VIPs[i].Address.String() == vip && line.To == to && line.State == view.Not &&
				strings.Contains(line.Why, "mgmt0") {
				return true
			}
		}
	}
	return false
}
