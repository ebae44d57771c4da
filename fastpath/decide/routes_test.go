package decide

import (
	"net/netip"
	"testing"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestRouteCache: the cache returns the same route as the view, also if two backends share an
// entry, if a backend's index got another address, and after routes have changed.
func TestRouteCache(t *testing.T) {
	table := nexthop.NewTable()
	view := func(hop nexthop.ID) *nexthop.View {
		r := new(bart.Table[nexthop.Route])
		r.Insert(netip.MustParsePrefix("10.0.1.0/24"), nexthop.Route{Hop: hop, Kind: nexthop.OnLink})
		r.Insert(netip.MustParsePrefix("2001:db8::/32"), nexthop.Route{Kind: nexthop.Kernel})
		table.Publish(&nexthop.View{Generation: 7, Routes: r}) // two views may have the same generation
		return table.View()
	}
	backend := func(index uint32, ip string) *services.Backend {
		return &services.Backend{Addr: header.AddrFrom(netip.MustParseAddr(ip)), Ref: services.MakeBackendRef(index, 1)}
	}
	near, same, moved := backend(5, "10.0.1.5"), backend(5+routesCached, "2001:db8::5"), backend(5, "10.0.2.5")
	before, after := view(1), view(2)
	c := new(RouteCache)
	for i, step := range []struct {
		view *nexthop.View
		b    *services.Backend
	}{
		{before, near}, {before, near}, {before, same}, {before, near}, {before, moved}, {before, near},
		{after, near}, {after, same}, {after, moved}, {before, moved}, {before, near},
	} {
		want := step.view.Lookup(&step.b.Addr)
		if got := c.to(step.view, step.b); got != want {
			t.Errorf("step %d, to %v: %+v, want %+v", i, step.b.Addr, got, want)
		}
		if got := (*RouteCache)(nil).to(step.view, step.b); got != want {
			t.Errorf("step %d, to %v, without a cache: %+v, want %+v", i, step.b.Addr, got, want)
		}
	}
}
