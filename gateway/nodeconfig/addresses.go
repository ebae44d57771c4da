package nodeconfig

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/nat/header"
)

// nodePortAddresses returns the node's addresses that accept node ports: the addresses that the
// configuration selects, or all addresses of its own interfaces.
func nodePortAddresses(c *config.Configuration, all []neigh.Address, node objects.NodeInfo) (list []header.Addr) {
	primary := primaryAddresses(all, node)
	selected := func(a neigh.Address) bool {
		if len(c.NodeAddresses) == 0 {
			return a.Link >= 0
		}
		return slices.ContainsFunc(c.NodeAddresses, func(s config.AddressSelector) bool {
			if s.Primary {
				return slices.Contains(primary, a.Prefix.Addr())
			}
			return s.Prefix.Contains(a.Prefix.Addr())
		})
	}
	for _, a := range all {
		if a.Global && selected(a) {
			list = append(list, header.AddrFrom(a.Prefix.Addr()))
		}
	}
	return list
}

// primaryAddresses returns the first address of each family in the Node object, like kube-proxy
// (k8s.io/kubernetes cmd/kube-proxy/app/server.go detectNodeIPs). Until the Node is known, it
// returns the first address of each family on the node's own interfaces.
func primaryAddresses(all []neigh.Address, node objects.NodeInfo) (list []netip.Addr) {
	var have [2]bool
	take := func(a netip.Addr) {
		if f := &have[a.BitLen()/128]; !*f {
			*f, list = true, append(list, a)
		}
	}
	for _, a := range node.Addresses {
		take(a)
	}
	if node.Known {
		return list
	}
	for _, a := range all {
		if a.Global && a.Usable && !a.Secondary && a.Link >= 0 {
			take(a.Prefix.Addr())
		}
	}
	return list
}

// sourcesOf returns the gateway's source addresses towards backends of a family: the configured
// ones, or the addresses that the kernel would use; then the route chooses one of them (byRoute).
func sourcesOf(configured, routed []netip.Addr, v6 bool) (list []header.Addr, byRoute bool) {
	if list = family(configured, v6); len(list) > 0 {
		return list, false
	}
	return family(routed, v6), true
}

func family(all []netip.Addr, v6 bool) (list []header.Addr) {
	for _, a := range all {
		if a.Is6() == v6 {
			list = append(list, header.AddrFrom(a))
		}
	}
	return list
}

// HealthAddresses returns the addresses on which health check node ports listen: the addresses that
// the configuration selects, or all addresses of a family that the node has, like kube-proxy
// (nodePortAddresses). All addresses include later ones.
func HealthAddresses(c *config.Configuration, nodePorts []header.Addr) (list []netip.Addr) {
	for i := range nodePorts {
		a := nodePorts[i].Netip()
		if len(c.NodeAddresses) == 0 && a.Is4() {
			a = netip.IPv4Unspecified()
		} else if len(c.NodeAddresses) == 0 {
			a = netip.IPv6Unspecified()
		}
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}
