package single

import (
	"net/netip"

	"sluice.dev/sluice/test/bed/topo"
)

// podRanges returns the ranges of the pods of a node, by the node's number.
func podRanges(node int) [2]netip.Prefix {
	return [2]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(node), 0}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x44, 7: byte(node)}), 64),
	}
}

// nodeHosts are the hosts of nodes, the gateway's first: a node's number is its place.
func (c *Cluster) nodeHosts() []*topo.Host {
	return append([]*topo.Host{c.Net.Gateway}, c.Net.Backends[:c.config.Workers]...)
}

// route makes nodes forward, and every host of the inner segment know where pods are: the control
// plane too, whose API server may be asked to reach them.
func (c *Cluster) route() error {
	hosts := c.nodeHosts()
	for _, h := range hosts {
		if err := h.Forward(true); err != nil {
			return err
		}
	}
	for _, from := range append(hosts, c.control) {
		for i, to := range hosts {
			if from == to {
				continue
			}
			inner := to.Interfaces[len(to.Interfaces)-1]
			for k, via := range [...]netip.Addr{inner.Addr4.Addr(), inner.Addr6.Addr()} {
				if err := from.Route(podRanges(i)[k], via); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
