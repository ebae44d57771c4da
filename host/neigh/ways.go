package neigh

import (
	"net/netip"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// Way is the link by which the kernel's routes lead to an address, even if its neighbour does not
// answer.
type Way struct {
	Kind    nexthop.Kind
	Link    int  // OnLink: position in Config.Links
	Default bool // by a default route, of prefix length 0
}

// Ways has the ways to all addresses. It is immutable: a change of routes or links makes a new one.
type Ways struct {
	targets *bart.Table[target]
	links   map[int32]int // of devices
}

// Ways returns the ways of the last reading; safe for any goroutine. It is nil before the first
// reading.
func (m *Mirror) Ways() *Ways { return m.ways.Load() }

func (m *Mirror) publishWays() {
	w := &Ways{targets: m.targets, links: make(map[int32]int, len(m.links))}
	for index, d := range m.devices {
		if d.link != noLink {
			w.links[int32(index)] = d.link
		}
	}
	m.ways.Store(w)
}

// To returns the way to an address.
func (w *Ways) To(a netip.Addr) Way {
	prefix, t, ok := w.targets.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen()))
	if !ok {
		return Way{}
	}
	return w.wayOf(t, prefix.Bits() == 0)
}

// Unresolved reports whether the kernel must resolve an address on a served link before this host
// can send to it: the address is on the link, and the kernel does not have its MAC address. Safe
// for any goroutine.
func (m *Mirror) Unresolved(a netip.Addr) bool {
	w := m.Ways()
	if w == nil {
		return false
	}
	t, ok := w.targets.Lookup(a)
	if !ok || t.kind != nexthop.OnLink || t.via != (header.Addr{}) {
		return false
	}
	_, known := m.known.get(neighKey{t.dev, header.AddrFrom(a)})
	return !known
}

// Route is a route of the kernel.
type Route struct {
	Prefix netip.Prefix
	Way
	Via header.Addr // OnLink: the gateway; zero if the destination itself is on the link
}

// SameHop reports whether both routes lead to the same next hop.
func (r *Route) SameHop(as *Route) bool {
	return r.Kind == as.Kind && r.Link == as.Link && r.Via == as.Via
}

// Route returns the route to all addresses of a prefix that no more specific route leads to; the
// zero Route if there is none.
func (w *Ways) Route(p netip.Prefix) Route {
	prefix, t, ok := w.targets.LookupPrefixLPM(p)
	if !ok {
		return Route{}
	}
	return Route{prefix, w.wayOf(t, prefix.Bits() == 0), t.via}
}

// Defaults returns the links that default routes lead to.
func (w *Ways) Defaults() (links []int) {
	for _, any := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		t, ok := w.targets.Get(netip.PrefixFrom(any, 0))
		if way := w.wayOf(t, true); ok && way.Kind == nexthop.OnLink {
			links = append(links, way.Link)
		}
	}
	return links
}

func (w *Ways) wayOf(t target, isDefault bool) Way {
	link, served := w.links[t.dev]
	switch {
	case t.kind != nexthop.OnLink:
		return Way{Kind: t.kind}
	case !served: // its device was removed after the routes were read
		return Way{}
	}
	return Way{Kind: nexthop.OnLink, Link: link, Default: isDefault}
}
