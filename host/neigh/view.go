package neigh

import (
	"net/netip"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// publish publishes a View of the next generation, made from the targets and the tracked
// neighbours, and retires the hops that it does not use.
func (m *Mirror) publish() {
	used := make(map[hopKey]struct{})
	for _, n := range m.tracked {
		n.gateway, n.hosted, n.hops = false, false, n.hops[:0]
	}
	routes := new(bart.Table[nexthop.Route])
	for prefix, t := range m.targets.All() {
		routes.Insert(prefix, m.routeOf(t, used))
	}
	for key, n := range m.tracked {
		if hop, ok := m.hostHop(n); ok {
			id, ok := m.hopOf(hop, n)
			if !ok {
				continue
			}
			used[hop] = struct{}{}
			n.hosted = true
			routes.Insert(hostPrefix(key.addr), m.hostRoute(n, id))
		} else if !n.gateway && !n.host {
			m.forget(n)
		}
	}
	m.ids.retireAllBut(used, m.generation, m.now())
	if m.generation++; m.generation == 0 {
		m.generation = 1
	}
	m.routes = routes
	m.table.Publish(&nexthop.View{Generation: m.generation, Routes: routes})
	for _, n := range m.tracked {
		if !n.waits() {
			m.use(n) // new gateways
		}
	}
}

// routeOf returns the route to a target, and writes its hop. Hops must be written before the View
// that names them is published.
func (m *Mirror) routeOf(t target, used map[hopKey]struct{}) nexthop.Route {
	r := nexthop.Route{Kind: t.kind, Source: t.source}
	switch {
	case t.kind == nexthop.Kernel && (t.mtu == 0 || m.host != nil && int(t.mtu) >= m.host.MTU):
		r.Hop = nexthop.ViaKernel
	case t.kind == nexthop.Kernel:
		key := hopKey{kind: nexthop.Kernel, mtu: t.mtu}
		if id, ok := m.ids.acquire(key); ok {
			r.Hop, used[key] = id, struct{}{}
			m.ids.set(id, m.kernelHop(t.mtu))
		}
	case t.kind == nexthop.OnLink && t.via != (header.Addr{}):
		n := m.track(neighKey{t.dev, t.via}, true)
		n.gateway = true
		key := hopKey{nexthop.OnLink, n.key, t.mtu}
		if _, again := used[key]; again {
			r.Hop, _ = m.ids.acquire(key)
			return r
		}
		id, ok := m.hopOf(key, n)
		if !ok {
			// Without an ID the route cannot name its gateway. Only many destinations can exhaust
			// the IDs: there are fewer than MaxHops gateways.
			m.log.Error("next hops exhausted: a route is not served", "gateway", t.via)
			return nexthop.Route{}
		}
		r.Hop, used[key] = id, struct{}{}
	}
	return r
}

// hopOf acquires the ID of a hop of neighbour n and writes the hop.
func (m *Mirror) hopOf(key hopKey, n *neighbour) (nexthop.ID, bool) {
	id, ok := m.ids.acquire(key)
	if !ok {
		return 0, false
	}
	n.hops = append(n.hops, key)
	m.ids.set(id, m.neighbourHop(n, key.mtu))
	return id, true
}

// hostHop returns the hop of a host route to n. It returns false unless a worker has requested n as
// a destination, n has answered once, and the routes lead to its address directly on its link.
func (m *Mirror) hostHop(n *neighbour) (hopKey, bool) {
	if !n.host || n.mac == ([6]byte{}) {
		return hopKey{}, false
	}
	t, ok := m.targets.Lookup(n.key.addr.Netip())
	if !ok || t.kind != nexthop.OnLink || t.via != (header.Addr{}) || t.dev != n.key.dev {
		return hopKey{}, false
	}
	return hopKey{nexthop.OnLink, n.key, t.mtu}, true
}

// hostRoute returns the host route to a neighbour for which hostHop returned true: the route to its
// network, with the neighbour's own hop.
func (m *Mirror) hostRoute(n *neighbour, id nexthop.ID) nexthop.Route {
	t, _ := m.targets.Lookup(n.key.addr.Netip())
	return nexthop.Route{Hop: id, Kind: nexthop.OnLink, Source: t.source}
}

// admitHost adds the host route to a neighbour, if hostHop allows one and there is none yet. The
// new View shares the rest of the table with the previous one and keeps its generation: no worker
// has a route to this destination yet.
func (m *Mirror) admitHost(n *neighbour) {
	hop, ok := m.hostHop(n)
	if !ok || n.hosted {
		return
	}
	id, ok := m.hopOf(hop, n)
	if !ok {
		m.forgetHosts()
		return
	}
	n.hosted = true
	m.routes = m.routes.InsertPersist(hostPrefix(n.key.addr), m.hostRoute(n, id))
	m.table.Publish(&nexthop.View{Generation: m.generation, Routes: m.routes})
}

// hopChanged rewrites a neighbour's hops in place.
func (m *Mirror) hopChanged(n *neighbour) {
	for _, key := range n.hops {
		if e := m.ids.byKey[key]; e != nil {
			m.ids.set(e.id, m.neighbourHop(n, key.mtu))
		}
	}
	m.admitHost(n)
}

// rewriteHops rewrites all hops in place, after an interface changed its MAC or MTU.
func (m *Mirror) rewriteHops() {
	for _, n := range m.tracked {
		m.hopChanged(n)
	}
	m.ids.set(nexthop.ViaKernel, m.kernelHop(0))
	for key, e := range m.ids.byKey {
		if key.kind == nexthop.Kernel {
			m.ids.set(e.id, m.kernelHop(key.mtu))
		}
	}
}

func (m *Mirror) neighbourHop(n *neighbour, mtu uint16) nexthop.Hop {
	d := m.devices[int(n.key.dev)]
	return nexthop.Hop{
		Kind: nexthop.OnLink, Ready: n.ready, Link: uint8(d.link),
		VLANs: d.vlans, VLAN: d.vlan, MTU: minMTU(d.mtu, mtu),
		DstMAC: n.mac, SrcMAC: d.mac, Addr: n.key.addr,
	}
}

// kernelHop returns a hop of the host link. Without a host link the hop has no MAC addresses.
func (m *Mirror) kernelHop(mtu uint16) nexthop.Hop {
	if m.host == nil {
		return nexthop.Hop{Kind: nexthop.Kernel, Ready: true, MTU: mtu}
	}
	return nexthop.Hop{
		Kind: nexthop.Kernel, Ready: true, MTU: minMTU(clampMTU(m.host.MTU), mtu),
		DstMAC: m.host.KernelMAC, SrcMAC: m.host.UserMAC,
	}
}

func hostPrefix(a header.Addr) netip.Prefix {
	ip := a.Netip()
	return netip.PrefixFrom(ip, ip.BitLen())
}
