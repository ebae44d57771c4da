package daemon

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/host/neigh"
)

// impairedEvery bounds how often impairments are looked for: that costs what all endpoints of all
// VIPs cost, and the pulse has all VIPs in it when one says something else. impairedRest times as
// long as a look took, at least, is the next one away.
const (
	impairedEvery = time.Second
	impairedRest  = 20
)

// vipService is a Service at one of its VIPs.
type vipService struct {
	vip             netip.Addr
	namespace, name string
}

// routed is what impairments are found by.
type routed struct {
	snapshot *services.Snapshot
	ways     *neigh.Ways // that to is of
	to       func(netip.Addr) neigh.Way
	hops     *nexthop.Table
	view     *nexthop.View
	facts    *reach.Facts
	lost     func(f *reach.Facts, w neigh.Way) (why string)
}

// impairments finds the Services whose new connections are likely to fail from this gateway: of a
// port at least half of the endpoints that take flows cannot be reached, by the routes, interfaces
// and neighbours of this host; or fewer than half are healthy by the gateway's checks, so that all
// take flows (fail open). Whether another gateway is better is not known here: announcers make
// routers prefer others, which is right in both cases.
//
// The goroutine that watches the ports uses it.
type impairments struct {
	last  map[vipService]string
	due   time.Time // of the next look
	of    routed    // that last was found by
	links []string
	// lost are endpoints that a route led to which was no default route, and that it does not lead
	// to any more. If a default route is left for one, it leads elsewhere.
	lost map[netip.Addr]bool
	// ready is whether the neighbour of each next hop of an endpoint answered.
	ready map[nexthop.ID]bool
}

// look returns the impairments, and the same map as before if they are the same.
func (p *impairments) look(r *routed, now time.Time) map[vipService]string {
	links := linksOf(r.facts)
	fresh := p.last != nil && r.snapshot == p.of.snapshot && r.ways == p.of.ways && r.view == p.of.view &&
		slices.Equal(links, p.links) && !p.readinessChanged(r.hops)
	if fresh || now.Before(p.due) {
		return p.last
	}
	began := time.Now()
	if next := p.find(r); p.last == nil || !maps.Equal(next, p.last) {
		p.last = next
	}
	p.of, p.links = *r, links
	p.of.facts = nil
	p.due = now.Add(max(impairedEvery, impairedRest*time.Since(began)))
	return p.last
}

// linksOf returns why each link passes no packets.
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

func (p *impairments) find(r *routed) map[vipService]string {
	before := p.lost
	p.lost, p.ready = map[netip.Addr]bool{}, map[nexthop.ID]bool{}
	found, sets := map[vipService]string{}, map[*services.EndpointSet]string{}
	r.snapshot.Frontends(func(f *services.Frontend) bool {
		if f.Kind != services.LoadBalancer || f.Outside.Set == nil {
			return true
		}
		why, known := sets[f.Outside.Set]
		if !known {
			why = p.ofSet(r, f.Outside.Set, before)
			sets[f.Outside.Set] = why
		}
		if why == "" {
			return true
		}
		key := vipService{f.Key.Addr.Netip(), f.Service.Namespace, f.Service.Name}
		why = fmt.Sprintf("port %d: %s", f.Key.Port, why)
		if other, there := found[key]; !there || why < other { // the same one of several each time
			found[key] = why
		}
		return true
	})
	return found
}

// ofSet returns why new connections to a set are likely to fail; empty: they are not.
func (p *impairments) ofSet(r *routed, set *services.EndpointSet, before map[netip.Addr]bool) (why string) {
	lost, down := 0, false
	for _, ref := range set.Backends {
		b := r.snapshot.Backend(ref)
		if b == nil {
			continue
		}
		// Sets have endpoints that are down only where too many are (package compiler).
		down = down || b.Flags&services.BackendDown != 0
		if of := p.ofBackend(r, b, before); of != "" {
			if lost++; why == "" {
				why = of
			}
		}
	}
	switch {
	case lost > 0 && 2*lost >= len(set.Backends): // which is why checks fail, where they do
		return fmt.Sprintf("%d of %d endpoints cannot be reached from here: %s", lost, len(set.Backends), why)
	case down:
		return "fewer than half of the endpoints are healthy by this gateway's checks"
	}
	return ""
}

// ofBackend returns why packets to an endpoint do not arrive; empty: nothing is known against it.
// before are those of lost at the look before.
func (p *impairments) ofBackend(r *routed, b *services.Backend, before map[netip.Addr]bool) (why string) {
	a := b.Addr.Netip()
	way := r.to(a)
	why = r.lost(r.facts, way)
	if (why != "" || way.Default) && (before[a] || p.hadRoute(a)) {
		if p.lost[a] = true; why == "" {
			why = "its route has gone, and a default route is left"
		}
	}
	if why != "" || way.Kind != nexthop.OnLink {
		return why
	}
	route := r.view.Lookup(&b.Addr)
	if route.Kind != nexthop.OnLink || route.Hop == 0 { // a neighbour that was not needed yet
		return ""
	}
	hop := r.hops.Hop(route.Hop)
	if hop == nil {
		return ""
	}
	if p.ready[route.Hop] = hop.Ready; !hop.Ready {
		return fmt.Sprintf("the next hop %v does not answer", hop.Addr.Netip())
	}
	return ""
}

// hadRoute reports whether a route that was no default route led to an address at the look before.
func (p *impairments) hadRoute(a netip.Addr) bool {
	if p.of.to == nil {
		return false
	}
	way := p.of.to(a)
	return way.Kind == nexthop.OnLink && !way.Default
}

// same reports whether two say the same of VIPs.
func (f *found) same(as *found) bool {
	if f == nil || as == nil {
		return f == as
	}
	return maps.Equal(f.impaired, as.impaired)
}

// impairment returns why new connections to a Service at a VIP are likely to fail.
func (f *found) impairment(of vipService) string {
	if f == nil {
		return ""
	}
	return f.impaired[of]
}
