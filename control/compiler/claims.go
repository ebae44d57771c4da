package compiler

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// setClaims replaces a unit's claims by the claims of its new version. A denied unit has claims as
// well, so that admit can count them; winner ignores them. winner decides later, when all claims
// are known. moved: the unit may win or lose against others although its claims stay the same.
func (c *contest) setClaims(u *unit, now *objects.Service, moved bool) {
	for _, a := range u.vips {
		c.addrs.setVIP(a, -1)
	}
	before := u.claims
	u.claims, u.refusedClaims, u.fits = nil, nil, 0
	fits, _ := c.cfg.fitting(now)
	if !u.unlisted {
		u.claims, u.refusedClaims = c.claimsOf(now, fits)
		u.refusedClaims = append(u.refusedClaims, tooMany(now, fits)...)
	}
	if u.denied == "" {
		u.fits = fits
	}
	same := slices.Equal(before, u.claims)
	if moved || !same {
		c.change(before)
		c.change(u.claims)
	}
	if !same {
		for _, cl := range before {
			c.claims.remove(cl.key, u.num)
		}
		for _, cl := range u.claims {
			c.claims.add(cl.key, u.num)
		}
	}
	u.vips = nil
	if u.fits > 0 {
		u.vips = c.vipsOf(now)
	}
	for _, a := range u.vips {
		c.addrs.setVIP(a, +1)
	}
}

// vipsOf returns the addresses at which clients reach a Service.
func (c *contest) vipsOf(s *objects.Service) (addrs []header.Addr) {
	for _, v := range s.VIPs {
		if c.cfg.serves(s, v) && c.cfg.permits(v) {
			addrs = append(addrs, v.Addr)
		}
	}
	return addrs
}

// claimsOf lists the frontends of the first ports of a Service, in order. It returns a problem for
// each frontend that would receive replies to this gateway's own source ports.
func (c *contest) claimsOf(s *objects.Service, ports int) (claims []claim, refusedClaims []objects.Problem) {
	if ports == 0 {
		return nil, nil
	}
	add := func(cl claim, field string) {
		if ports := c.replyPorts(cl); ports.Contains(cl.key.Port) {
			refusedClaims = append(refusedClaims, objects.Problem{Object: s.ID, Field: field, Severity: objects.Refused,
				Reason: objects.ReasonPortClash,
				Message: fmt.Sprintf("%s is in the range of source ports (%d to %d) on a source address of this "+
					"gateway",
					frontendName(cl.key), ports.First, ports.First+ports.Count-1)})
			return
		}
		claims = append(claims, cl)
	}
	for i, p := range s.Ports[:ports] {
		for _, v := range s.VIPs {
			if !c.cfg.serves(s, v) || !c.cfg.permits(v) {
				continue
			}
			if c.cfg.unguarded(v, p.Proto) {
				refusedClaims = append(refusedClaims, unguardedProblem(s, i, v))
				continue
			}
			add(claim{services.FrontendKey{Addr: v.Addr, Port: p.Port, Proto: p.Proto}, v.Kind, i},
				fmt.Sprintf("spec.ports[%d].port", i))
		}
		for f, any := range [2]header.Addr{services.AnyIPv4, services.AnyIPv6} {
			if c.cfg.nodePorts(s, &p) && s.Families[f] {
				add(claim{services.FrontendKey{Addr: any, Port: p.NodePort, Proto: p.Proto}, services.NodePort, i},
					fmt.Sprintf("spec.ports[%d].nodePort", i))
			}
		}
	}
	slices.SortFunc(claims, compareClaims)
	return claims, append(refusedClaims, c.cfg.notPermitted(s)...)
}

// replyPorts returns the ports at which a frontend would receive replies to this gateway's source
// addresses and ports. If the node does not have the address, it may also be an allocated VIP: the
// gateway distinguishes replies to its flows from requests, except for late replies. But any author
// of a Service may choose an external IP, and would get the late replies.
func (c *contest) replyPorts(cl claim) services.PortRange {
	own := false // a source address of ours
	switch cl.key.Addr {
	case services.AnyIPv4:
		own = slices.ContainsFunc(c.cfg.SNAT4, c.acceptsNodePorts)
	case services.AnyIPv6:
		own = slices.ContainsFunc(c.cfg.SNAT6, c.acceptsNodePorts)
	default:
		flags := c.addrs.own[cl.key.Addr].flags
		own = flags&services.AddrSNAT != 0
		if own && flags&(services.AddrNode|services.AddrLocal) == 0 && cl.kind == services.ExternalIP {
			return services.OwnPorts
		}
	}
	if !own {
		return services.PortRange{}
	}
	return c.cfg.SNATPorts
}

func (c *contest) acceptsNodePorts(a header.Addr) bool {
	return c.addrs.own[a].flags&services.AddrNode != 0
}

// tooMany returns a problem for the ports that fitting left out.
func tooMany(s *objects.Service, ports int) (problems []objects.Problem) {
	if !s.Served() || ports == len(s.Ports) {
		return nil
	}
	return []objects.Problem{{Object: s.ID, Field: fmt.Sprintf("spec.ports[%d]", ports), Severity: objects.Refused,
		Message: fmt.Sprintf("this port and the %d behind it are refused: with them the Service has more than %d "+
			"frontends (addresses times ports, and node ports), the most that one can have; split it",
			len(s.Ports)-ports-1, maxServiceFrontends)}}
}
