package decide

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// RouteCache remembers the routes to backends, as one view has them: there are many flows to each,
// and a lookup by prefix is several dependent loads, over IPv6 more than of anything else that is
// planned. A view does not change, so what was found in it holds for as long as it is the same one.
// It is not for clients: they are too many.
type RouteCache struct {
	view *nexthop.View
	at   [routesCached]struct {
		addr  header.Addr // of no backend where it is zero
		route nexthop.Route
	}
}

const routesCached = 1024

// to returns the view's route to a backend. The nil cache looks it up.
func (c *RouteCache) to(v *nexthop.View, b *services.Backend) nexthop.Route {
	if c == nil {
		return v.Lookup(&b.Addr)
	}
	if c.view != v {
		clear(c.at[:])
		c.view = v
	}
	e := &c.at[b.Ref.Index()%routesCached]
	if e.addr != b.Addr {
		e.addr, e.route = b.Addr, v.Lookup(&b.Addr)
	}
	return e.route
}
