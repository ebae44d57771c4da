package decide

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// RouteCache caches one view's routes to backends. Many flows go to each backend, and a lookup by
// prefix takes several dependent loads: over IPv6 it costs more than the rest of a plan. Views are
// immutable, so an entry is valid for as long as its view is current. Routes to clients are not
// cached: there are too many.
type RouteCache struct {
	view uint64 // its number
	at   [routesCached]struct {
		addr  header.Addr // zero in an empty entry
		route nexthop.Route
	}
}

const routesCached = 1024

// to returns the view's route to a backend. A nil cache looks up each route.
func (c *RouteCache) to(v *nexthop.View, b *services.Backend) nexthop.Route {
	if c == nil {
		return v.Lookup(&b.Addr)
	}
	if c.view != v.Number() {
		clear(c.at[:])
		c.view = v.Number()
	}
	e := &c.at[b.Ref.Index()%routesCached]
	if e.addr != b.Addr {
		e.addr, e.route = b.Addr, v.Lookup(&b.Addr)
	}
	return e.route
}
