package daemon

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/nat/header"
)

// gatewayHost is a gateway with an interface to clients and one to backends, whose Services have
// endpoints 10.0.0.1 to 10.0.0.4 and fd00::1, fd00::2.
type gatewayHost struct {
	routes map[netip.Prefix]neigh.Route
	// pods are the endpoints of IPv4 of Service web.
	pods  []netip.Addr
	down  map[netip.Addr]bool // by checks
	links []reach.Link
	// silent are endpoints behind a next hop that does not answer.
	silent map[netip.Addr]bool
	// checked has the results of checks, each as new as the look.
	checked map[netip.Addr]bool
	hops    *nexthop.Table
	judge   reach.Judge
	found   impairments
}

func newGatewayHost() *gatewayHost {
	h := &gatewayHost{routes: map[netip.Prefix]neigh.Route{}, down: map[netip.Addr]bool{},
		silent: map[netip.Addr]bool{}, hops: nexthop.NewTable(), pods: endpoints("10.0.0.", 4),
		links: []reach.Link{{Name: "front"}, {Name: "back"}}}
	for _, a := range append(endpoints("10.0.0.", 4), endpoints("fd00::", 2)...) {
		h.set(netip.PrefixFrom(a, a.BitLen()), 1, "")
	}
	return h
}

// set adds a route by a link and a gateway; "" is none.
func (h *gatewayHost) set(p netip.Prefix, link int, via string) {
	r := neigh.Route{Prefix: p, Way: neigh.Way{Kind: nexthop.OnLink, Link: link, Default: p.Bits() == 0}}
	if via != "" {
		r.Via = header.AddrFrom(netip.MustParseAddr(via))
	}
	h.routes[p] = r
}

func endpoints(prefix string, n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.MustParseAddr(prefix+string(rune('1'+i))))
	}
	return list
}

// snapshot has Service web at 192.0.2.1 and 2001:db8::1, with all endpoints of the family, and
// Service one at 192.0.2.2, with the first endpoint of IPv4.
func (h *gatewayHost) snapshot() *services.Snapshot {
	b := services.NewBuilder(nil)
	id := services.ServiceID(0)
	add := func(name, vip string, to []netip.Addr) {
		id++
		s := &services.Service{ID: id, Namespace: "default", Name: name, Proto: header.ProtoTCP, Port: 80}
		b.SetService(s)
		set := &services.EndpointSet{}
		for i, a := range to {
			x := services.Backend{Addr: header.AddrFrom(a), Port: 80, Proto: header.ProtoTCP, Service: id,
				Ref: services.MakeBackendRef(uint32(id)*8+uint32(i), 1), Weight: 1,
				Flags: services.BackendReady | services.BackendServing}
			if h.down[a] {
				x.Flags |= services.BackendDown
			}
			b.SetBackend(x)
			set.Backends = append(set.Backends, x.Ref)
		}
		b.SetFrontend(&services.Frontend{Kind: services.LoadBalancer, Service: s, Outside: services.Rule{Set: set},
			Key: services.FrontendKey{Addr: header.AddrFrom(netip.MustParseAddr(vip)), Port: 80,
				Proto: header.ProtoTCP}})
	}
	add("web", "192.0.2.1", h.pods)
	add("web", "2001:db8::1", endpoints("fd00::", 2))
	add("one", "192.0.2.2", h.pods[:min(1, len(h.pods))])
	return b.Build()
}

// look returns the VIPs that are impaired, in order, with why.
func (h *gatewayHost) look(now time.Time) (list []string) {
	facts := &reach.Facts{Links: h.links, Defaults: []int{0}}
	hops, routes := h.hops, new(bart.Table[nexthop.Route])
	hops.SetHop(1, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true})
	hops.SetHop(2, &nexthop.Hop{Kind: nexthop.OnLink, Addr: header.AddrFrom(netip.MustParseAddr("10.9.9.9"))})
	kernel := new(bart.Table[neigh.Route])
	for p, r := range h.routes {
		facts.Backends = append(facts.Backends, r.Way)
		hop := nexthop.ID(1)
		if h.silent[p.Addr()] {
			hop = 2
		}
		routes.Insert(p, nexthop.Route{Kind: r.Kind, Hop: hop})
		kernel.Insert(p, r)
	}
	h.judge.Look(facts)
	route := func(p netip.Prefix) neigh.Route { _, r, _ := kernel.LookupPrefixLPM(p); return r }
	found := h.found.look(&routed{snapshot: h.snapshot(), hops: hops, view: &nexthop.View{Routes: routes}, facts: facts,
		to: func(a netip.Addr) neigh.Way { return route(netip.PrefixFrom(a, a.BitLen())).Way }, route: route,
		lost: h.judge.Lost, checks: func(f func(netip.Addr, bool, time.Time)) {
			for a, ok := range h.checked {
				f(a, ok, now)
			}
		}}, now)
	for _, key := range slices.SortedFunc(maps.Keys(found), func(a, b vipService) int { return a.vip.Compare(b.vip) }) {
		list = append(list, key.vip.String()+" "+key.name+": "+found[key])
	}
	return list
}

// TestImpaired: what is known of endpoints, and which VIPs say that they are impaired.
func TestImpaired(t *testing.T) {
	t.Parallel()
	lose := func(prefix string, n int) func(h *gatewayHost) {
		return func(h *gatewayHost) {
			for _, a := range endpoints(prefix, n) {
				delete(h.routes, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	const all4 = "192.0.2.1 web: port 80: "
	for name, c := range map[string]struct {
		change func(h *gatewayHost)
		want   []string // beginnings
	}{
		"well": {func(*gatewayHost) {}, nil},
		"one family has no route": {lose("fd00::", 2),
			[]string{"2001:db8::1 web: port 80: 2 of 2 endpoints cannot be reached from here: the kernel has no " +
				"route"}},
		"one Service has no route": {lose("10.0.0.", 1),
			[]string{"192.0.2.2 one: port 80: 1 of 1 endpoints cannot be reached from here: the kernel has no route"}},
		"half of the endpoints": {lose("10.0.0.", 2), []string{all4 + "2 of 4", "192.0.2.2 one"}},
		"no route to any": {func(h *gatewayHost) { lose("10.0.0.", 4)(h); lose("fd00::", 2)(h) },
			[]string{all4 + "4 of 4", "192.0.2.2 one", "2001:db8::1 web"}},
		"checks say so of most": {func(h *gatewayHost) {
			for _, a := range endpoints("10.0.0.", 3) {
				h.down[a] = true
			}
		}, []string{all4 + "fewer than half", "192.0.2.2 one: port 80: fewer than half"}},
		"the next hop of one": {func(h *gatewayHost) { h.silent[endpoints("10.0.0.", 1)[0]] = true },
			[]string{"192.0.2.2 one: port 80: 1 of 1 endpoints cannot be reached from here: the next hop " +
				"10.9.9.9 does not answer"}},
		"the interface is down, and its routes stay": {func(h *gatewayHost) {
			h.links = []reach.Link{{Name: "front"}, {Name: "back",
				Why: "is down"}}
		}, []string{all4 + "4 of 4 endpoints cannot be reached from here: interface back is down", "192.0.2.2 one",
			"2001:db8::1 web"}},
		"a default route is left": {func(h *gatewayHost) {
			lose("fd00::", 2)(h)
			h.set(netip.MustParsePrefix("::/0"), 0, "")
		}, []string{"2001:db8::1 web: port 80: 2 of 2 endpoints cannot be reached from here: its route has gone, and " +
			"a default"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, now := newGatewayHost(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			if got := h.look(now); len(got) > 0 {
				t.Fatalf("at first: %q", got)
			}
			c.change(h)
			if got := h.look(now.Add(impairedEvery - 1)); len(got) > 0 {
				t.Errorf("before it is looked again: %q", got)
			}
			for range 2 { // and the next time
				now = now.Add(impairedEvery)
				h.found.due = now // a busy machine searches for long
				got := h.look(now)
				same := len(got) == len(c.want)
				for i := 0; same && i < len(got); i++ {
					same = strings.HasPrefix(got[i], c.want[i])
				}
				if !same {
					t.Errorf("got  %q\nwant %q", got, c.want)
				}
			}
		})
	}
}

// TestLostRoutes: while a route to endpoints has gone, and a default route to another next hop is
// left, a VIP is impaired, also for later endpoints in the prefix.
func TestLostRoutes(t *testing.T) {
	t.Parallel()
	pods, all := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("0.0.0.0/0")
	const node, router = "10.9.9.1", "10.9.9.2"
	gone := func(h *gatewayHost) { delete(h.routes, pods) }
	restart := func(h *gatewayHost) { h.pods = endpoints("10.0.0.", 3)[2:] }
	type step = func(h *gatewayHost)
	for name, c := range map[string]struct {
		steps []step // each with a search
		rest  time.Duration
		want  bool // impaired
	}{
		"route gone":                         {[]step{gone}, 0, true},
		"route gone, and gateway silent too": {[]step{gone, func(h *gatewayHost) { delete(h.routes, all) }}, 0, true},
		"another pod":                        {[]step{gone, restart}, 0, true},
		"no pod, and another one":            {[]step{gone, func(h *gatewayHost) { h.pods = nil }, restart}, 0, true},
		"no pod for long": {[]step{gone, func(h *gatewayHost) { h.pods = nil }, func(*gatewayHost) {},
			restart}, 2 * unusedKept, false},
		"used for long": {[]step{gone, restart}, 2 * unusedKept, true},
		"route back":    {[]step{gone, func(h *gatewayHost) { h.set(pods, 1, node) }}, 0, false},
		"a wider route": {[]step{gone, func(h *gatewayHost) {
			h.set(netip.MustParsePrefix("10.0.0.0/16"), 1, router)
		}}, 0, false},
		"default route by the same gateway": {[]step{func(h *gatewayHost) { h.set(all, 1, node) }, gone}, 0, false},
		"default route by the same gateway later": {[]step{gone, func(h *gatewayHost) { h.set(all, 1, node) }}, 0,
			false},
		"first no route, then a default route": {[]step{func(h *gatewayHost) { gone(h); delete(h.routes, all) },
			func(h *gatewayHost) { h.set(all, 1, router) }, restart}, 0, true},
		"checks pass": {[]step{gone, func(h *gatewayHost) {
			h.checked = map[netip.Addr]bool{h.pods[0]: true}
		}}, provenEvery, false},
		"checks before the loss": {[]step{gone, func(h *gatewayHost) {
			h.checked = map[netip.Addr]bool{h.pods[0]: true}
		}}, impairedEvery, true},
		"a check fails": {[]step{gone, func(h *gatewayHost) {
			h.checked = map[netip.Addr]bool{h.pods[0]: true, h.pods[1]: false}
		}}, provenEvery, true},
		"checks elsewhere": {[]step{gone, func(h *gatewayHost) {
			h.checked = map[netip.Addr]bool{netip.MustParseAddr("10.1.0.1"): true}
		}}, provenEvery, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, now := newGatewayHost(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			h.pods = endpoints("10.0.0.", 2)
			clear(h.routes)
			h.set(pods, 1, node)
			h.set(all, 1, router)
			h.set(netip.MustParsePrefix("fd00::/64"), 1, "")
			if got := h.look(now); len(got) > 0 {
				t.Fatalf("at first: %q", got)
			}
			var got []string
			for _, change := range c.steps {
				change(h)
				now = now.Add(max(impairedEvery, c.rest))
				h.found.due = now // a busy machine searches for long
				got = h.look(now)
			}
			if impaired := len(got) > 0 && strings.HasPrefix(got[0], "192.0.2.1 web"); impaired != c.want {
				t.Errorf("impaired %v, want %v: %q", impaired, c.want, got)
			}
		})
	}
}

// TestSilentHopsAreResolved: while a next hop of an endpoint does not answer, it is requested once
// a second, because no worker requests it once another gateway gets the packets.
func TestSilentHopsAreResolved(t *testing.T) {
	t.Parallel()
	h, now := newGatewayHost(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	requests := func(within time.Duration) (list []string) {
		for range within / (100 * time.Millisecond) {
			h.look(now)
			now = now.Add(100 * time.Millisecond)
		}
		for len(h.hops.FirstRequests()) > 0 {
			a := (<-h.hops.FirstRequests()).Addr
			list = append(list, a.Netip().String())
		}
		return list
	}
	if got := requests(5 * time.Second); len(got) > 0 {
		t.Errorf("all answer: requests %q", got)
	}
	h.silent[endpoints("10.0.0.", 1)[0]] = true
	requests(2 * time.Second) // the look that finds it
	if got := requests(5 * time.Second); len(got) != 5 || got[0] != "10.0.0.1" {
		t.Errorf("one does not answer: requests %q, want 5 for 10.0.0.1", got)
	}
	clear(h.silent)
	requests(2 * time.Second)
	if got := requests(5 * time.Second); len(got) > 0 {
		t.Errorf("it answers again: requests %q", got)
	}
}

// BenchmarkImpaired looks at 10,000 VIPs with 10 endpoints each, all of which are reached.
func BenchmarkImpaired(b *testing.B) {
	builder := services.NewBuilder(nil)
	n := uint32(0)
	for i := range 10_000 {
		s := &services.Service{ID: services.ServiceID(i + 1), Proto: header.ProtoTCP, Port: 80}
		set := &services.EndpointSet{}
		for range 10 {
			n++
			x := services.Backend{Addr: header.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), Port: 80,
				Proto: header.ProtoTCP, Service: s.ID, Ref: services.MakeBackendRef(n, 1), Flags: services.BackendReady}
			builder.SetBackend(x)
			set.Backends = append(set.Backends, x.Ref)
		}
		builder.SetService(s)
		builder.SetFrontend(&services.Frontend{Service: s, Outside: services.Rule{Set: set}, Key: services.FrontendKey{
			Addr: header.AddrFrom4([4]byte{192, 1, byte(i >> 8), byte(i)}), Port: 80, Proto: header.ProtoTCP}})
	}
	way := neigh.Way{Kind: nexthop.OnLink}
	facts := &reach.Facts{Links: []reach.Link{{Name: "back"}}, Backends: []neigh.Way{way}}
	routes, hops := new(bart.Table[nexthop.Route]), nexthop.NewTable()
	routes.Insert(netip.MustParsePrefix("10.0.0.0/8"), nexthop.Route{Kind: nexthop.OnLink, Hop: 1})
	hops.SetHop(1, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true})
	var judge reach.Judge
	judge.Look(facts)
	r := &routed{snapshot: builder.Build(), to: func(netip.Addr) neigh.Way { return way }, hops: hops,
		view: &nexthop.View{Routes: routes}, facts: facts, lost: judge.Lost}
	var p impairments
	for b.Loop() {
		if found := p.find(r, time.Time{}); len(found) > 0 {
			b.Fatal(found)
		}
	}
}
