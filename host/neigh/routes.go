package neigh

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// target is the result of a prefix's route, without hop IDs. It is comparable, so that a new
// reading of the kernel's routes can be compared with the last one, and pointer-free.
type target struct {
	kind   nexthop.Kind
	dev    int32       // OnLink: index of the interface to send on
	via    header.Addr // OnLink: the gateway; zero if the destination itself is on the link
	source header.Addr // OnLink: the source address; zero if the interface has none
	mtu    uint16      // of the route; for Kernel also of its device; 0 is no limit
}

// neverForwarded has the destinations that the gateway never forwards to, with any routes.
var neverForwarded = [...]netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// candidate is a route for a prefix, with the values that decide between several.
type candidate struct {
	target
	table  int // 0 local, 1 main, 2 default: the order of the kernel's own rules
	metric int
}

// preferredTo reports whether the kernel prefers c to o. Of equal routes it uses the first one.
func (c *candidate) preferredTo(o *candidate) bool {
	if c.table != o.table {
		return c.table < o.table
	}
	return c.metric < o.metric
}

// routeCompiler turns the kernel's routes into targets. The same reading gives the same targets.
type routeCompiler struct {
	devices map[int]device
	own     sources
	host    *HostLink
	best    map[netip.Prefix]candidate
	local6  []netip.Prefix // IPv6 local prefixes of more than one address: AnyIP
	spread  []spreadRoute
}

// newRouteCompiler returns a compiler; routes is the expected number of routes.
func newRouteCompiler(routes int, devices map[int]device, own sources, host *HostLink) *routeCompiler {
	return &routeCompiler{
		devices: devices, own: own, host: host, best: make(map[netip.Prefix]candidate, routes),
	}
}

// add adds a route. It keeps no reference to it.
func (c *routeCompiler) add(r *netlink.Route) {
	prefix, ok := prefixOf(r)
	if !ok {
		return
	}
	n := candidate{metric: r.Priority}
	if n.table, ok = tableRank(r.Table); !ok {
		return
	}
	if n.target, ok = targetOf(r, c.devices, c.host); !ok {
		return
	}
	if n.kind == nexthop.OnLink && aliveNexthops(r) > 1 {
		c.spread = append(c.spread, spreadRoute{prefix, n.target})
	}
	if n.kind == nexthop.OnLink {
		n.source = c.own.pick(c.devices[int(n.dev)].name, prefix, n.via, r.Src)
	}
	if n.table == 0 && prefix.Addr().Is6() && !prefix.IsSingleIP() {
		c.local6 = append(c.local6, prefix)
	}
	if old, taken := c.best[prefix]; !taken || n.preferredTo(&old) {
		c.best[prefix] = n
	}
}

// targets returns the targets of the added routes.
func (c *routeCompiler) targets() map[netip.Prefix]target {
	targets := make(map[netip.Prefix]target, len(c.best)+len(neverForwarded))
	for p, n := range c.best {
		if !shadowed(p, n.table, c.best, c.local6) {
			targets[p] = n.target
		}
	}
	for _, p := range neverForwarded {
		targets[p] = target{}
	}
	return targets
}

// shadowed reports whether a prefix in an earlier table contains p. The kernel searches its tables
// in order, so a shorter match in an earlier table hides a longer match in a later one. For IPv4,
// but not for IPv6, local and main are one table as long as there are only the default rules
// (net/ipv4/fib_frontend.c, fib_unmerge).
func shadowed(p netip.Prefix, table int, best map[netip.Prefix]candidate, local6 []netip.Prefix) bool {
	if table == 1 && p.Addr().Is6() {
		for _, l := range local6 {
			if l.Bits() < p.Bits() && l.Contains(p.Addr()) {
				return true
			}
		}
	}
	if table == 2 {
		for bits := p.Bits() - 1; bits >= 0; bits-- {
			shorter, _ := p.Addr().Prefix(bits)
			if c, ok := best[shorter]; ok && c.table < table {
				return true
			}
		}
	}
	return false
}

func tableRank(table int) (int, bool) {
	switch table {
	case unix.RT_TABLE_LOCAL:
		return 0, true
	case unix.RT_TABLE_MAIN:
		return 1, true
	case unix.RT_TABLE_DEFAULT:
		return 2, true
	}
	return 0, false
}

// prefixOf returns the destination of a route; false if the route matches no forwarded packet.
func prefixOf(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil || r.Tos != 0 || r.Flags&unix.RTM_F_CLONED != 0 {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, size := r.Dst.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	p, err := a.Prefix(bits)
	if err != nil || a.IsMulticast() || a.IsLinkLocalUnicast() && a.Is6() {
		return netip.Prefix{}, false
	}
	return p, true
}

// targetOf returns the target of one route; false if the kernel would skip the route because all of
// its nexthops are dead.
func targetOf(r *netlink.Route, devices map[int]device, host *HostLink) (target, bool) {
	switch r.Type {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		// Delivered, not sent: the MTU of the interface does not matter.
		return kernelTarget(0, r.MTU), true
	case unix.RTN_UNICAST:
	default: // blackhole, unreachable, prohibit, throw, broadcast, multicast
		return target{}, true
	}
	nh, ok := nexthopOf(r)
	if !ok {
		return target{}, false
	}
	d, known := devices[nh.LinkIndex]
	switch {
	case host != nil && nh.LinkIndex == host.KernelIndex:
		return target{}, true
	case !known || d.link == noLink || nh.Encap != nil:
		return kernelTarget(d.mtu, r.MTU), true
	case !d.up:
		return target{}, false
	}
	t := target{kind: nexthop.OnLink, dev: int32(nh.LinkIndex), mtu: clampMTU(r.MTU)}
	t.via, ok = gatewayOf(nh)
	return t, ok
}

func kernelTarget(device uint16, route int) target {
	return target{kind: nexthop.Kernel, mtu: minMTU(device, clampMTU(route))}
}

// nexthopOf returns the first nexthop that the kernel considers alive. The kernel sets RTNH_F_DEAD
// if the interface is down or, with the sysctl ignore_routes_with_linkdown, has no carrier
// (net/ipv4/fib_semantics.c, fib_nexthop_info).
func nexthopOf(r *netlink.Route) (*netlink.NexthopInfo, bool) {
	if len(r.MultiPath) == 0 {
		nh := &netlink.NexthopInfo{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via, Encap: r.Encap, Flags: r.Flags}
		return nh, nh.Flags&unix.RTNH_F_DEAD == 0
	}
	for _, nh := range r.MultiPath {
		if nh.Flags&unix.RTNH_F_DEAD == 0 {
			return nh, true
		}
	}
	return nil, false
}

// gatewayOf returns the gateway, of either family (RFC 5549: IPv4 through an IPv6 neighbour), or
// the zero address if there is none.
func gatewayOf(nh *netlink.NexthopInfo) (header.Addr, bool) {
	gw := nh.Gw
	if via, ok := nh.Via.(*netlink.Via); ok && via != nil {
		gw = via.Addr
	}
	if len(gw) == 0 || gw.Equal(net.IPv6zero) || gw.Equal(net.IPv4zero) {
		return header.Addr{}, true
	}
	a, ok := netip.AddrFromSlice(gw)
	if !ok {
		return header.Addr{}, false
	}
	return header.AddrFrom(a), true
}
