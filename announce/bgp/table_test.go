package bgp

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/file"
	"sluice.dev/sluice/announce/kinds"
)

// advertised has three advertisements: of single addresses, of aggregates, and of some Services.
const advertised = objects + `
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: single}
spec: {communities: ['64500:1']}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: aggregates}
spec: {aggregationLength: 28, aggregationLengthV6: 124, localPref: 200}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: few}
spec: {peers: [ibgp], localPref: 300, communities: ['64500:7'], serviceSelectors: [{matchLabels: {app: few}}]}
`

func readSet(t *testing.T, text string) *kinds.Set {
	t.Helper()
	list, err := file.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	objects = append(objects, list...)
	set, problems := new(kinds.Reader).Read(objects)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return set
}

// history makes a series of Worlds that differ in a few VIPs each.
type history struct {
	*rand.Rand
	world *announce.World
}

func newHistory(set *kinds.Set) *history {
	return &history{rand.New(rand.NewPCG(5, 6)), &announce.World{Node: announce.Node{Name: "n"}, Gateway: announce.Yes,
		Set: set, Number: 1, Sources: []*announce.VIPVerdict{{VIP: netip.MustParseAddr("198.18.0.1"), Source: true,
			Rank: 2, Grade: announce.Yes}}}}
}

func (h *history) vip() netip.Addr {
	if h.IntN(3) == 0 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", h.IntN(64)))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(h.IntN(64))})
}

// next returns a World in which a few VIPs came, went, or have another verdict.
func (h *history) next() *announce.World {
	w := *h.world
	w.Number, w.Since, w.Changed = w.Number+1, w.Number, nil
	w.VIPs = slices.Clone(w.VIPs)
	for range h.IntN(4) {
		vip := h.vip()
		w.Changed = append(w.Changed, vip)
		w.VIPs = slices.DeleteFunc(w.VIPs, func(s *announce.VIPVerdict) bool { return s.VIP == vip })
		if h.IntN(4) == 0 {
			continue
		}
		s := &announce.VIPVerdict{VIP: vip, Services: []string{"shop/web"}, Labels: []labels.Set{{"app": "web"}},
			Pool: w.Set.PoolOf(vip), Grade: announce.Grade(h.IntN(4)), Why: "as told"}
		if h.IntN(3) == 0 {
			s.Labels[0]["app"] = "few"
		}
		w.VIPs = append(w.VIPs, s)
	}
	slices.SortFunc(w.VIPs, func(a, b *announce.VIPVerdict) int { return a.VIP.Compare(b.VIP) })
	h.world = &w
	return &w
}

// TestTableIsPlan: a table that follows single VIPs equals the Plan of the last World, and returns
// the changed routes. The plans of other VIPs are not replaced.
func TestTableIsPlan(t *testing.T) {
	t.Parallel()
	h := newHistory(readSet(t, advertised))
	table := newTable(h.world)
	before := table.plan()
	for step := range 1000 {
		planned := maps.Clone(table.vips)
		w := h.next()
		changed := table.follow(w, w.Changed)
		got, want := table.plan(), NewPlan(w)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: the table has %d routes and %d VIPs, the plan %d and %d:\n%+v\n%+v", step,
				len(got.Routes), len(got.Lines), len(want.Routes), len(want.Lines), got.Routes, want.Routes)
		}
		routes := func(p *Plan) map[netip.Prefix]map[string]Attributes {
			m := map[netip.Prefix]map[string]Attributes{}
			for _, r := range p.Routes {
				m[r.Prefix] = r.To
			}
			return m
		}
		was, is := routes(before), routes(got)
		for prefix := range merged(was, is) {
			if differ := !maps.EqualFunc(was[prefix], is[prefix], Attributes.equal); differ !=
				slices.Contains(changed, prefix) {
				t.Fatalf("step %d: %v: told something else: %v; counts as changed: %v", step, prefix, differ, !differ)
			}
		}
		for vip, p := range table.vips {
			if planned[vip] != p && !slices.Contains(w.Changed, vip) {
				t.Fatalf("step %d: %v was planned, and only %v changed", step, vip, w.Changed)
			}
		}
		counts := map[string]int{}
		for _, to := range is {
			for name := range to {
				counts[name]++
			}
		}
		for name, n := range table.counts {
			if n != counts[name] {
				t.Fatalf("step %d: %d routes to %s, and %d are planned", step, n, name, counts[name])
			}
		}
		before = got
	}
}

func merged[K comparable, V any](a, b map[K]V) map[K]V {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}

// TestAnyOrder: GoBGP has the routes of the last World, whether the speaker got every World or has
// missed some.
func TestAnyOrder(t *testing.T) {
	h := newHistory(readSet(t, advertised))
	s := New(Config{Log: slog.New(slog.DiscardHandler), RouterID: netip.MustParseAddr("10.9.9.9")})
	defer s.Close()
	for step := range 300 {
		w := h.next()
		if h.IntN(5) == 0 {
			continue // another speaker had it
		}
		s.Apply(w)
		want := map[netip.Prefix]string{}
		for _, r := range NewPlan(w).Routes {
			want[r.Prefix] = s.keyOf(&r)
		}
		got, used := map[netip.Prefix]string{}, map[*variant]int{}
		for prefix, v := range s.paths {
			got[prefix] = v.key
			used[v]++
		}
		if !maps.Equal(got, want) {
			t.Fatalf("step %d: GoBGP has %v, want %v", step, got, want)
		}
		if len(s.due) > 0 {
			t.Errorf("step %d: %d routes are due", step, len(s.due))
		}
		for key, v := range s.variants {
			if v.paths != used[v] || v.paths == 0 || v.key != key {
				t.Fatalf("step %d: a variant counts %d paths, and %d have it", step, v.paths, used[v])
			}
		}
	}
}
