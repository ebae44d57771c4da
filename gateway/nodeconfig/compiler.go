// Package nodeconfig makes the compiler's configuration from the gateway's configuration and the
// node's addresses: the addresses that accept node ports, the source addresses of packets to
// backends, and the addresses that answer health checks.
package nodeconfig

import (
	"net/netip"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// programRoom bounds the frontends, addresses and kept sources of all objects. The kernel program's
// tables have one eighth more room, for the node's own addresses and for entries that live flows
// keep after their object is gone.
const programRoom = xdpprog.DefaultMaxEntries - xdpprog.DefaultMaxEntries/8

// Compiler returns the compiler's configuration for a node: name is its name, key the key of its
// seed, all its addresses, routed the addresses that the kernel would send from, info its Node
// object.
func Compiler(
	c *config.Configuration, node string, key [2]uint64, all []neigh.Address, routed []netip.Addr,
	info objects.NodeInfo,
) compiler.Config {
	cc := compiler.Config{
		NodeName: node, SelectKey: key, UnservedPort: unserved(c.UnservedVIPPort),
		ResetUnknown: c.UnknownConnection == config.UnknownReset,
		SNATPorts:    services.PortRange{First: c.SNAT.Ports.First, Count: uint16(c.SNAT.Ports.Count())},
		MaxFrontends: programRoom, MaxAddrs: programRoom, MaxSources: programRoom,
	}
	proxied(&c.Proxy, &cc)
	if c.DirectReturn.VNI != 0 {
		cc.TunnelPort = uint16(c.DirectReturn.Port)
	}
	cc.Limits = services.Limits{
		SourceConnections:    uint32(c.Limits.ConnectionsPerSource),
		SourceNewConnections: uint32(c.Limits.NewConnectionsPerSource),
		Connections:          uint32(c.Limits.Connections),
		NewConnections:       uint32(c.Limits.NewConnections),
	}
	cc.Checks = c.EndpointHealth.Checks()
	for _, a := range all {
		if a.Global {
			cc.LocalAddresses = append(cc.LocalAddresses, header.AddrFrom(a.Prefix.Addr()))
		} else {
			cc.OtherAddresses = append(cc.OtherAddresses, header.AddrFrom(a.Prefix.Addr()))
		}
	}
	for _, a := range info.Addresses {
		cc.OtherAddresses = append(cc.OtherAddresses, header.AddrFrom(a))
	}
	cc.DeniedHostPorts = deniedHostPorts(c)
	cc.NodeAddresses = nodePortAddresses(c, all, info)
	cc.SNAT4, cc.SNATByRoute4 = sourcesOf(c.SNAT.Addresses, routed, false)
	cc.SNAT6, cc.SNATByRoute6 = sourcesOf(c.SNAT.Addresses, routed, true)
	for i := range c.Group.Members {
		for _, a := range c.Group.Members[i].Sources {
			cc.GroupSources = append(cc.GroupSources, header.AddrFrom(a))
		}
	}
	return cc
}

func unserved(p config.UnservedPolicy) services.UnservedPolicy {
	return map[config.UnservedPolicy]services.UnservedPolicy{
		config.UnservedPass: services.UnservedPass, config.UnservedReject: services.UnservedReject,
		config.UnservedDrop: services.UnservedDrop,
	}[p]
}

// deniedHostPorts returns the configured ports, and the ports on which this process listens.
func deniedHostPorts(c *config.Configuration) (list []services.PortRange) {
	for _, p := range c.Proxy.DeniedHostPorts {
		list = append(list, services.PortRange{First: p.First, Count: uint16(p.Count())})
	}
	for _, own := range c.ListensOn() {
		list = append(list, services.PortRange{First: own, Count: 1})
	}
	for i := range c.Group.Members {
		list = append(list, services.PortRange{First: c.Group.Members[i].Address.Port(), Count: 1})
	}
	return list
}

// proxied copies the settings about how Services are served.
func proxied(p *config.Proxy, to *compiler.Config) {
	to.ClusterIPs, to.ClusterCIDRs = p.ClusterIPs, p.ClusterCIDRs
	to.ExternalIPs = p.ExternalIPs
	to.MasqueradeAll, to.StrictSourceRanges = p.MasqueradeAll, p.StrictSourceRanges
	to.NamespaceShare = p.NamespaceShare
	to.Scheduler, _ = services.ParseScheduler(string(p.Scheduler)) // checked at start
	// Otherwise a client whose backend does not answer waits for its own timeout.
	to.RetryOther = true
}
