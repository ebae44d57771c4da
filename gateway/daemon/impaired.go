package daemon

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/nat/header"
)

// impairedEvery is the least interval between two searches for impairments. A search visits all
// endpoints of all VIPs, and the pulse sends all VIPs when one has changed. The pause after a
// search is also at least impairedRest times as long as the search.
const (
	impairedEvery = time.Second
	impairedRest  = 20
)

// silentPerLook bounds the requests of one look: they share the queue with requests of workers.
const silentPerLook = 64

// vipService is a Service at one of its VIPs.
type vipService struct {
	vip             netip.Addr
	namespace, name string
}

// routed is the input of a search for impairments.
type routed struct {
	snapshot *services.Snapshot
	ways     *neigh.Ways // to is its method To
	to       func(netip.Addr) neigh.Way
	route    func(netip.Prefix) neigh.Route // the method Route of ways
	hops     *nexthop.Table
	view     *nexthop.View
	facts    *reach.Facts
	lost     func(f *reach.Facts, w neigh.Way) (why string)
	// checks calls its argument for the last check of each endpoint.
	checks func(func(a netip.Addr, ok bool, at time.Time))
}

// Times of routes that have gone.
const (
	// provenEvery is the interval between two comparisons with the checks. It is at least the
	// longest timeout of a check: one that ends this long after the loss has begun after it.
	provenEvery = 10 * time.Second
	// unusedKept is how long a route is remembered that no endpoint needs.
	unusedKept = time.Hour
)

// lostRoute is a route to endpoints that has gone. A default route that is left leads elsewhere:
// these endpoints and later ones in the prefix count as lost until a route for the prefix is back,
// the default route has the same next hop, or all checks in the prefix pass.
type lostRoute struct {
	neigh.Route
	at     time.Time // when the search found it
	used   bool      // an endpoint of this search is in it
	unused time.Time // since when no search has found such an endpoint; zero if the last one has
}

// impairments finds the Services whose new connections are likely to fail from this gateway. A port
// of a Service is impaired if at least half of the endpoints that take flows cannot be reached by
// the routes, interfaces and neighbours of this host, or if fewer than half are healthy by the
// gateway's checks, so that all take flows (fail open). The gateway does not know whether another
// gateway is better. Announcers make routers prefer others, which is right in both cases.
//
// Only the goroutine that watches the ports may use it.
type impairments struct {
	last  map[vipService]string
	due   time.Time // of the next search
	of    routed    // the input of last
	links []string
	// lost has the routes that have gone, without default routes.
	lost     bart.Table[*lostRoute]
	provenAt time.Time // next call of forgetProven
	// ready has, for each next hop of an endpoint, whether the neighbour answered.
	ready map[nexthop.ID]bool
	// silent has an endpoint behind each next hop that does not answer.
	silent    map[nexthop.ID]header.Addr
	resolveAt time.Time // next call of resolveSilent
}

// look returns the impairments: the same map as the last time if they are equal.
func (p *impairments) look(r *routed, now time.Time) map[vipService]string {
	p.resolveSilent(r.hops, now)
	links := linksOf(r.facts)
	unchanged := p.last != nil && r.snapshot == p.of.snapshot && r.ways == p.of.ways && r.view == p.of.view &&
		slices.Equal(links, p.links) && !p.readinessChanged(r.hops)
	if now.Before(p.due) || !p.forgetProven(r, now) && unchanged {
		return p.last
	}
	began := time.Now()
	if next := p.find(r, now); p.last == nil || !maps.Equal(next, p.last) {
		p.last = next
	}
	p.of, p.links = *r, links
	p.of.facts = nil
	p.due = now.Add(max(impairedEvery, impairedRest*time.Since(began)))
	return p.last
}

// linksOf returns, for each link, the reason that it passes no packets; empty if it passes them.
func linksOf(f *reach.Facts) (list []string) {
	for i := range f.Links {
		list = append(list, f.Links[i].Why)
	}
	if f.Host != nil {
		list = append(list, f.Host.Why)
	}
	return list
}

func (p *impairments) readinessChanged(hops *nexthop.Table) bool {
	for id, ready := range p.ready {
		if hop := hops.Hop(id); hop != nil && hop.Ready != ready {
			return true
		}
	}
	return false
}

// resolveSilent requests the next hops that do not answer, once a second. If another gateway gets
// the packets of an impaired VIP, no worker of this one requests them, and it would not notice that
// they answer again.
func (p *impairments) resolveSilent(hops *nexthop.Table, now time.Time) {
	if now.Before(p.resolveAt) {
		return
	}
	p.resolveAt = now.Add(time.Second)
	n := 0
	for id, endpoint := range p.silent {
		if hop := hops.Hop(id); hop == nil || hop.Ready {
			continue
		}
		if n++; n > silentPerLook {
			return
		}
		hops.ResolveFirst(endpoint)
	}
}

func (p *impairments) find(r *routed, now time.Time) map[vipService]string {
	p.forgetLost(r, now)
	p.ready, p.silent = map[nexthop.ID]bool{}, map[nexthop.ID]header.Addr{}
	found, sets := map[vipService]string{}, map[*services.EndpointSet]string{}
	r.snapshot.Frontends(func(f *services.Frontend) bool {
		if f.Kind != services.LoadBalancer || f.Outside.Set == nil {
			return true
		}
		why, known := sets[f.Outside.Set]
		if !known {
			why = p.ofSet(r, f.Outside.Set, now)
			sets[f.Outside.Set] = why
		}
		if why == "" {
			return true
		}
		key := vipService{f.Key.Addr.Netip(), f.Service.Namespace, f.Service.Name}
		why = fmt.Sprintf("port %d: %s", f.Key.Port, why)
		if other, there := found[key]; !there || why < other { // always the same one of several
			found[key] = why
		}
		return true
	})
	return found
}

// ofSet returns why new connections to a set are likely to fail; empty if they are not.
func (p *impairments) ofSet(r *routed, set *services.EndpointSet, now time.Time) (why string) {
	lost, down := 0, false
	for _, ref := range set.Backends {
		b := r.snapshot.Backend(ref)
		if b == nil {
			continue
		}
		// Sets have endpoints that are down only if too many are down (package compiler).
		down = down || b.Flags&services.BackendDown != 0
		if of := p.ofBackend(r, b, now); of != "" {
			if lost++; why == "" {
				why = of
			}
		}
	}
	switch {
	case lost > 0 && 2*lost >= len(set.Backends): // checks, if there are any, fail for this reason
		return fmt.Sprintf("%d of %d endpoints cannot be reached from here: %s", lost, len(set.Backends), why)
	case down:
		return "fewer than half of the endpoints are healthy by this gateway's checks"
	}
	return ""
}

// ofBackend returns why packets to an endpoint do not arrive; empty if the gateway knows no reason.
func (p *impairments) ofBackend(r *routed, b *services.Backend, now time.Time) (why string) {
	a := b.Addr.Netip()
	way := r.to(a)
	why = r.lost(r.facts, way)
	if (why != "" || way.Default) && p.lostRoute(r, a, now) && why == "" {
		why = "its route has gone, and a default route is left"
	}
	if why != "" || way.Kind != nexthop.OnLink {
		return why
	}
	route := r.view.Lookup(&b.Addr)
	if route.Kind != nexthop.OnLink || route.Hop == 0 { // a neighbour that no packet has needed yet
		return ""
	}
	hop := r.hops.Hop(route.Hop)
	if hop == nil {
		return ""
	}
	if p.ready[route.Hop] = hop.Ready; !hop.Ready {
		p.silent[route.Hop] = b.Addr
		return fmt.Sprintf("the next hop %v does not answer", hop.Addr.Netip())
	}
	return ""
}

// lostRoute reports whether the route to an address has gone, and another next hop is left. It
// remembers the route of the last search if that has gone.
func (p *impairments) lostRoute(r *routed, a netip.Addr, now time.Time) bool {
	host := netip.PrefixFrom(a, a.BitLen())
	if p.of.route != nil {
		if old := p.of.route(host); old.Kind == nexthop.OnLink && !old.Default {
			if left := r.route(host); left.Prefix != old.Prefix && !left.SameHop(&old) {
				if _, known := p.lost.Get(old.Prefix); !known {
					p.lost.Insert(old.Prefix, &lostRoute{Route: old, at: now})
				}
			}
		}
	}
	if p.lost.Size() == 0 {
		return false
	}
	lost, found := p.lost.Lookup(a)
	if found {
		lost.used = true
	}
	return found
}

// forgetLost ends the memory of routes that are back, that the same next hop has replaced, and that
// no endpoint has needed for unusedKept.
func (p *impairments) forgetLost(r *routed, now time.Time) {
	var ended []netip.Prefix
	for prefix, lost := range p.lost.All() {
		left := r.route(prefix)
		back := left.Kind != nexthop.Unreachable && left.Prefix.Bits() > 0
		switch {
		case lost.used:
			lost.unused = time.Time{}
		case lost.unused.IsZero():
			lost.unused = now
		}
		lost.used = false
		if back || left.SameHop(&lost.Route) || !lost.unused.IsZero() && now.Sub(lost.unused) > unusedKept {
			ended = append(ended, prefix)
		}
	}
	for _, prefix := range ended {
		p.lost.Delete(prefix)
	}
}

// forgetProven ends the memory of routes to endpoints whose checks have passed since, and none has
// failed: the route that is left leads to them, too. It reports whether there are any.
func (p *impairments) forgetProven(r *routed, now time.Time) bool {
	if p.lost.Size() == 0 || now.Before(p.provenAt) {
		return false
	}
	p.provenAt = now.Add(provenEvery)
	passed := map[netip.Prefix]bool{}
	r.checks(func(a netip.Addr, ok bool, at time.Time) {
		prefix, lost, found := p.lost.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen()))
		if !found || at.Before(lost.at.Add(provenEvery)) {
			return
		}
		if before, known := passed[prefix]; !known || before {
			passed[prefix] = ok
		}
	})
	proven := false
	for prefix, ok := range passed {
		if ok {
			p.lost.Delete(prefix)
			proven = true
		}
	}
	return proven
}
