package compiler

import (
	"net/netip"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// allowed returns the clients that may use a frontend; nil is all clients. If the ranges admit the
// node itself, they admit the load balancer's address too, because the node uses that as its source
// if it has the address (k8s.io/kubernetes pkg/proxy/nftables/proxier.go, allowFromNode).
func (r *run) allowed(s *objects.Service, c claim) []netip.Prefix {
	ranges := s.Ranges[objects.Family(!is4(c.key.Addr))]
	if len(ranges) == 0 || c.kind == services.ClusterIP ||
		c.kind != services.LoadBalancer && !r.cfg.StrictSourceRanges {
		return nil
	}
	if c.kind == services.NodePort || !containsAny(ranges, r.cfg.LocalAddresses) {
		return ranges
	}
	vip := c.key.Addr.Netip()
	return append(ranges[:len(ranges):len(ranges)], netip.PrefixFrom(vip, vip.BitLen()))
}

func containsAny(ranges []netip.Prefix, addrs []header.Addr) bool {
	for _, a := range addrs {
		for _, p := range ranges {
			if p.Contains(a.Netip()) {
				return true
			}
		}
	}
	return false
}
