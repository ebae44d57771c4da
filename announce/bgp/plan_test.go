package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/file"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/announce/view"
)

// Plan is a table in a form that tests can compare.
type Plan struct {
	Peers  []*kinds.Peer // of this node, in order
	Routes []Route       // in order
	// Lines are by VIP, without the states of sessions.
	Lines map[netip.Addr][]view.Line
}

// NewPlan returns the Plan of a World.
func NewPlan(w *announce.World) *Plan { return newTable(w).plan() }

func (t *table) plan() *Plan {
	p := &Plan{Peers: t.peers, Lines: map[netip.Addr][]view.Line{}}
	for prefix, r := range t.routes {
		p.Routes = append(p.Routes, Route{prefix, r.to})
	}
	slices.SortFunc(p.Routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	for vip, one := range t.vips {
		if len(one.shown) > 0 {
			p.Lines[vip] = one.shown
		}
	}
	return p
}

const objects = `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: public, labels: {tier: front}}
spec: {addresses: [192.0.2.0/24, "2001:db8::/64"]}
---
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: few}
spec: {addresses: [198.51.100.4-198.51.100.9]}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: ebgp}
spec: {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.1}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: ibgp}
spec: {myASN: 64500, peerASN: 64500, peerAddress: 10.0.0.2, dualStackAddressFamily: true}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: elsewhere}
spec: {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.3, nodeSelectors: [{matchLabels: {rack: b}}]}
---
`

// TestPlan: each case has objects, the gateway's state, and the routes with attributes per peer.
func TestPlan(t *testing.T) {
	t.Parallel()
	const all = "kind: BGPAdvertisement\napiVersion: sluice.dev/v1alpha1\nmetadata: {name: all}\nspec: "
	for name, c := range map[string]struct {
		objects string
		vips    string // addresses; with L: policy Local without an endpoint
		node    announce.Node
		verdict announce.Verdict
		want    string
		why     string // of the first VIP's lines
		// impaired are VIPs whose endpoints the gateway cannot reach.
		impaired string
	}{
		"each as it is": {objects: all + "{}", vips: "192.0.2.7 2001:db8::7",
			want: "192.0.2.7/32 ebgp[] ibgp[]\n2001:db8::7/128 ibgp[]"},
		"attributes": {objects: all + "{localPref: 200, communities: ['64500:2', '64500:1', 'large:1:2:3'], peers: " +
			"[ibgp]}\n---\n" +
			strings.Replace(all, "all", "other", 1) + "{communities: ['64500:9']}", vips: "192.0.2.7",
			want: "192.0.2.7/32 ebgp[64500:9] ibgp[local preference 200 64500:1 64500:2 64500:9 large:1:2:3]"},
		"no local preference to others": {objects: all + "{localPref: 200, peers: [ebgp]}", vips: "192.0.2.7",
			want: "192.0.2.7/32 ebgp[]"},
		"aggregates": {objects: all + "{aggregationLength: 24, aggregationLengthV6: 64}",
			vips: "192.0.2.7 192.0.2.9 2001:db8::7",
			want: "192.0.2.0/24 ebgp[] ibgp[]\n2001:db8::/64 ibgp[]"},
		"an aggregate outside of the pool": {objects: all + "{aggregationLength: 24}", vips: "198.51.100.5",
			want: "198.51.100.5/32 ebgp[] ibgp[]", why: "not as 198.51.100.0/24, which pool few does not cover"},
		"pools": {objects: all + "{ipAddressPools: [few]}", vips: "192.0.2.7 198.51.100.5",
			want: "198.51.100.5/32 ebgp[] ibgp[]", why: "no BGPAdvertisement is for pool public"},
		"pools by label": {objects: all + "{ipAddressPoolSelectors: [{matchLabels: {tier: front}}]}",
			vips: "192.0.2.7 198.51.100.5",
			want: "192.0.2.7/32 ebgp[] ibgp[]"},
		"nodes": {objects: all + "{nodeSelectors: [{matchLabels: {rack: b}}]}", vips: "192.0.2.7",
			why: "no BGPAdvertisement is for pool public, this node"},
		"peers of other nodes": {objects: all + "{peers: [elsewhere]}", vips: "192.0.2.7",
			why: "has no BGPPeer that is for this node"},
		"a peer of this node": {objects: all + "{peers: [elsewhere]}", vips: "192.0.2.7",
			node: announce.Node{Labels: labels.Set{"rack": "b"}}, want: "192.0.2.7/32 elsewhere[]"},
		"services": {objects: all + "{serviceSelectors: [{matchLabels: {app: vip-192.0.2.7}}]}",
			vips: "192.0.2.7 192.0.2.8",
			want: "192.0.2.7/32 ebgp[] ibgp[]"},
		"no pool": {objects: all + "{}", vips: "203.0.113.1", why: "no pool has the address"},
		"policy Local": {objects: all + "{}", vips: "192.0.2.7L 192.0.2.8", want: "192.0.2.8/32 ebgp[] ibgp[]",
			why: "externalTrafficPolicy of default/vip-192.0.2.7 is Local, and no endpoint for this gateway is ready"},
		"cordoned": {objects: all + "{localPref: 200, communities: ['64500:1']}", vips: "192.0.2.7",
			node: announce.Node{Name: "n", Cordoned: true},
			want: "192.0.2.7/32 ebgp[64500:1 GRACEFUL_SHUTDOWN] ibgp[local preference 0 64500:1 GRACEFUL_SHUTDOWN]",
			why:  "cordoned"},
		"draining": {objects: all + "{}", vips: "192.0.2.7", verdict: announce.Verdict{Grade: announce.Leaving,
			Why: "drains"},
			want: "192.0.2.7/32 ebgp[GRACEFUL_SHUTDOWN] ibgp[local preference 0 GRACEFUL_SHUTDOWN]", why: "drains"},
		"the last resort": {objects: all + "{localPref: 200}", vips: "192.0.2.7", verdict: announce.Verdict{
			Grade: announce.LastResort, Why: "ended several times"},
			want: "192.0.2.7/32 ebgp[AS path +8 GRACEFUL_SHUTDOWN] ibgp[local preference 0 MED 1 GRACEFUL_SHUTDOWN]",
			why:  "ended several times"},
		"one VIP is the last resort": {objects: all + "{}", vips: "192.0.2.7 192.0.2.8",
			impaired: "192.0.2.7", why: "no route",
			want: "192.0.2.7/32 ebgp[AS path +8 GRACEFUL_SHUTDOWN] ibgp[local preference 0 MED 1 GRACEFUL_SHUTDOWN]\n" +
				"192.0.2.8/32 ebgp[] ibgp[]"},
		"one VIP of an aggregate": {objects: all + "{aggregationLength: 24}", vips: "192.0.2.7 192.0.2.8",
			impaired: "192.0.2.7", why: "no route", want: "192.0.2.0/24 ebgp[] ibgp[]"},
		"all VIPs of an aggregate": {objects: all + "{aggregationLength: 24, peers: [ebgp]}",
			vips: "192.0.2.7 192.0.2.8", impaired: "192.0.2.7 192.0.2.8", why: "no route",
			want: "192.0.2.0/24 ebgp[AS path +8 GRACEFUL_SHUTDOWN]"},
		"the last resort of a cordoned node": {objects: all + "{peers: [ebgp]}", vips: "192.0.2.7",
			node: announce.Node{Name: "n", Cordoned: true}, impaired: "192.0.2.7", why: "no route",
			want: "192.0.2.7/32 ebgp[AS path +8 GRACEFUL_SHUTDOWN]"},
		"excluded": {objects: all + "{}", vips: "192.0.2.7", why: "exclude-from-external-load-balancers",
			node: announce.Node{Name: "n", Labels: labels.Set{announce.ExcludeLabel: ""}}},
		"held": {objects: all + "{}", vips: "192.0.2.7", verdict: announce.Verdict{Grade: announce.Yes,
			Why: "waited for"},
			want: "192.0.2.7/32 ebgp[] ibgp[]", why: "waited for"},
		"gone": {objects: all + "{}", vips: "192.0.2.7", verdict: announce.Verdict{Grade: announce.No,
			Why: "back0 is down"},
			why: "back0 is down"},
		"no advertisement": {vips: "192.0.2.7", why: "no BGPAdvertisement"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := file.Decode([]byte(objects + c.objects))
			if err != nil {
				t.Fatal(err)
			}
			set, problems := new(kinds.Reader).Read(list)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			in := announce.Input{Node: c.node, Verdict: c.verdict, Set: set, Services: map[string]labels.Set{},
				Impaired: map[netip.Addr]string{}}
			for _, v := range strings.Fields(c.impaired) {
				in.Impaired[netip.MustParseAddr(v)] = "no route"
			}
			if c.verdict.Why == "" {
				in.Verdict.Grade = announce.Yes
			}
			for _, v := range strings.Fields(c.vips) {
				text, local := strings.CutSuffix(v, "L")
				name := "vip-" + text
				in.Services["default/"+name] = labels.Set{"app": strings.ReplaceAll(name, ":", "-")}
				in.Verdict.VIPs = append(in.Verdict.VIPs, pulse.VIP{Address: netip.MustParseAddr(text),
					Services: []pulse.Service{{Namespace: "default", Name: name, Local: local}}})
			}
			p := NewPlan(&announce.World{Node: c.node, VIPs: announce.Decide(&in), Set: set})
			if diff := gocmp.Diff(c.want, describe(p.Routes)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			first := p.Lines[in.Verdict.VIPs[0].Address]
			if len(first) == 0 || !strings.Contains(first[0].Why, c.why) || c.why == "" && first[0].Why != "" {
				t.Errorf("said of the first VIP: %+v, want %q", first, cmp.Or(c.why, "nothing"))
			}
		})
	}
}

// describe prints routes, one a line, with their attributes by peer.
func describe(routes []Route) string {
	var lines []string
	for _, r := range routes {
		line := r.Prefix.String()
		for _, peer := range slices.Sorted(maps.Keys(r.To)) {
			line += fmt.Sprintf(" %s[%v]", peer, r.To[peer])
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestPlanSources: source addresses are announced by themselves, with an AS path or MED by rank.
func TestPlanSources(t *testing.T) {
	t.Parallel()
	const all = "kind: BGPAdvertisement\napiVersion: sluice.dev/v1alpha1\nmetadata: {name: all}\nspec: "
	yes := announce.Verdict{Grade: announce.Yes}
	for name, c := range map[string]struct {
		advertisement string
		node          announce.Node
		verdict       announce.Verdict
		want, why     string
	}{
		"no pool": {advertisement: all + "{aggregationLength: 24, localPref: 200}", verdict: yes,
			want: "198.18.0.1/32 ebgp[] ibgp[local preference 200]\n" +
				"198.18.0.2/32 ebgp[AS path +3] ibgp[local preference 200 MED 3]\n" +
				"2001:db8:1::1/128 ibgp[local preference 200 MED 12]"},
		"of pools": {advertisement: all + "{ipAddressPools: [public]}", verdict: yes,
			why: "no BGPAdvertisement is for this node and all pools and Services"},
		"of Services": {advertisement: all + "{serviceSelectors: [{matchLabels: {app: web}}]}", verdict: yes,
			why: "no BGPAdvertisement is for this node and all pools and Services"},
		"leaving": {advertisement: all + "{peers: [ebgp]}", verdict: yes,
			node: announce.Node{Name: "n", Cordoned: true}, why: "cordoned",
			want: "198.18.0.1/32 ebgp[GRACEFUL_SHUTDOWN]\n198.18.0.2/32 ebgp[AS path +3 GRACEFUL_SHUTDOWN]"},
		"the last resort": {advertisement: all + "{}", verdict: announce.Verdict{Grade: announce.LastResort,
			Why: "ended several times"}, why: "ended several times",
			want: "198.18.0.1/32 ebgp[AS path +8 GRACEFUL_SHUTDOWN] " +
				"ibgp[local preference 0 MED 8 GRACEFUL_SHUTDOWN]\n" +
				"198.18.0.2/32 ebgp[AS path +11 GRACEFUL_SHUTDOWN] " +
				"ibgp[local preference 0 MED 11 GRACEFUL_SHUTDOWN]\n" +
				"2001:db8:1::1/128 ibgp[local preference 0 MED 20 GRACEFUL_SHUTDOWN]"},
		"gone": {advertisement: all + "{}", verdict: announce.Verdict{Grade: announce.No, Why: "ended"}, why: "ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := announce.Input{Node: c.node, Verdict: c.verdict, Set: readSet(t, objects+c.advertisement)}
			for i, a := range []string{"198.18.0.1", "198.18.0.2", "2001:db8:1::1"} {
				in.Verdict.Sources = append(in.Verdict.Sources, pulse.Source{Address: netip.MustParseAddr(a),
					Rank: []int{0, 3, 12}[i]})
			}
			// A Service with such an address must not be announced, and the source address must.
			in.Verdict.VIPs = []pulse.VIP{{Address: netip.MustParseAddr("198.18.0.1")}}
			table := newTable(&announce.World{Node: c.node, VIPs: announce.Decide(&in),
				Sources: announce.DecideSources(&in), Set: in.Set})
			if diff := gocmp.Diff(c.want, describe(table.plan().Routes)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			first := table.sources[netip.MustParseAddr("198.18.0.1")].shown
			if len(first) == 0 || !strings.Contains(first[0].Why, c.why) || c.why == "" && first[0].Why != "" {
				t.Errorf("said of the first address: %+v, want %q", first, cmp.Or(c.why, "nothing"))
			}
			if vip := table.vips[netip.MustParseAddr("198.18.0.1")].shown; vip[0].Why != "it is a source address of "+
				"the gateway's group" || len(vip) != 1 {
				t.Errorf("said of a VIP with its address: %+v", vip)
			}
		})
	}
}

// TestAggregateOfUnreadablePool: a process announces the aggregate of a pool that the previous
// process has read, even if the pool cannot be read at all now.
func TestAggregateOfUnreadablePool(t *testing.T) {
	t.Parallel()
	decode := func(addresses string) []*unstructured.Unstructured {
		list, err := file.Decode([]byte(strings.Replace(objects, "192.0.2.0/24", addresses, 1) +
			"apiVersion: sluice.dev/v1alpha1\nkind: BGPAdvertisement\nmetadata: {name: all}\n" +
			"spec: {aggregationLength: 24}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	before, problems := new(kinds.Reader).Read(decode("192.0.2.0/24"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var next kinds.Reader
	next.Resume(before.SavedPools())
	set, problems := next.Read(decode("192.0.2.0/240"))
	if len(problems) != 1 || !strings.Contains(problems[0].Note, "its previous version stays in force") {
		t.Errorf("%v", problems)
	}
	in := announce.Input{Set: set, Verdict: announce.Verdict{Grade: announce.Yes, VIPs: []pulse.VIP{{
		Address: netip.MustParseAddr("192.0.2.7")}}}}
	in.Verdict.VIPs[0].Services = []pulse.Service{{Namespace: "default", Name: "web"}}
	p := NewPlan(&announce.World{VIPs: announce.Decide(&in), Set: set})
	if len(p.Routes) != 1 || p.Routes[0].Prefix != netip.MustParsePrefix("192.0.2.0/24") {
		t.Errorf("%+v", p.Routes)
	}
}
