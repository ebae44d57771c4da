package compiler

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// guard is a unit's source ranges, by family, as the sets that its frontends share: there may be
// thousands of frontends, and tens of thousands of ranges.
type guard [2]struct {
	set  *services.Prefixes // nil: every client
	node bool               // it admits the node itself
}

// renew makes sets of ranges that changed.
func (g *guard) renew(s *objects.Service, cfg *Config) {
	for f := range g {
		if s == nil {
			g[f].set = nil
		} else if !slices.Equal(g[f].set.List(), s.Ranges[f]) {
			g[f].set = services.NewPrefixes(s.Ranges[f])
		}
		g[f].node = slices.ContainsFunc(cfg.LocalAddresses, g[f].set.Contains)
	}
}

// allowed returns the clients that may use a frontend; nil is all clients. If the ranges admit the
// node itself, they also admit the load balancer's address, because the node uses that as its
// source if it has the address (k8s.io/kubernetes pkg/proxy/nftables/proxier.go, allowFromNode). It
// returns before, the frontend's former clients, if the result is equal. strict is
// Config.StrictSourceRanges.
func (g *guard) allowed(c claim, strict bool, before *services.Prefixes) *services.Prefixes {
	r := &g[c.family()]
	if r.set == nil || c.kind == services.ClusterIP || c.kind != services.LoadBalancer && !strict {
		return nil
	}
	if c.kind == services.NodePort || !r.node {
		return r.set
	}
	vip := c.key.Addr.Netip()
	and := netip.PrefixFrom(vip, vip.BitLen())
	if common, also := before.Parts(); common == r.set && also == and {
		return before
	}
	return r.set.And(and)
}
