package compiler

import (
	"cmp"
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// claim is a frontend that a Service is to have. If several Services claim one, the oldest has it:
// so every gateway decides alike, and a new Service cannot take traffic from one that works.
// Services without a creation time, which come from manifests, count as the youngest; between
// equals the name decides.
type claim struct {
	key  services.FrontendKey
	kind services.FrontendKind
	port int // index in service.ports
}

func compareClaims(a, b claim) int {
	return cmp.Or(steer.CompareKeys(a.key, b.key), cmp.Compare(a.kind, b.kind))
}

func (c *claim) nodePort() bool {
	return c.key.Addr == services.AnyIPv4 || c.key.Addr == services.AnyIPv6
}

// setClaims replaces a unit's claims by those of its new version. A denied unit has claims, too, so
// that admit can tell what it would use; winner passes it over. settleClaims decides which unit has
// a frontend once all claims are known. moved: the unit may win or lose against others though its
// claims stay the same.
func (r *run) setClaims(u *unit, now *objects.Service, moved bool) {
	for _, a := range u.vips {
		r.setVIP(a, -1)
	}
	before := u.claims
	u.claims, u.refusedClaims, u.fits = nil, nil, 0
	fits, _ := r.fitting(now)
	if !u.unlisted {
		u.claims, u.refusedClaims = r.claimsOf(now, fits)
		u.refusedClaims = append(u.refusedClaims, tooMany(now, fits)...)
	}
	if u.denied == "" {
		u.fits = fits
	}
	same := slices.Equal(before, u.claims)
	if moved || !same {
		r.contest(before)
		r.contest(u.claims)
	}
	if !same {
		for _, c := range before {
			r.claims.remove(c.key, u.num)
		}
		for _, c := range u.claims {
			r.claims.add(c.key, u.num)
		}
	}
	u.vips = nil
	if u.fits > 0 {
		u.vips = r.vipsOf(now)
	}
	for _, a := range u.vips {
		r.setVIP(a, +1)
	}
}

// serves reports whether an address of a Service is a frontend here.
func (r *run) serves(v objects.VIP) bool { return v.Kind != services.ClusterIP || r.cfg.ClusterIPs }

// vipsOf returns the addresses that clients reach a Service at.
func (r *run) vipsOf(s *objects.Service) (addrs []header.Addr) {
	for _, v := range s.VIPs {
		if r.serves(v) && r.permits(v) {
			addrs = append(addrs, v.Addr)
		}
	}
	return addrs
}

// claimsOf lists the frontends of the first ports of a Service, in order, and a problem for each
// that it cannot have because it would take replies to our own source ports.
func (r *run) claimsOf(s *objects.Service, ports int) (claims []claim, refusedClaims []objects.Problem) {
	if ports == 0 {
		return nil, nil
	}
	add := func(c claim, field string) {
		if ports := r.replyPorts(c); ports.Contains(c.key.Port) {
			refusedClaims = append(refusedClaims, objects.Problem{Object: s.ID, Field: field, Severity: objects.Refused,
				Reason: objects.ReasonPortClash,
				Message: fmt.Sprintf("%s is in the range of source ports (%d to %d) on a source address of this "+
					"gateway",
					keyString(c.key), ports.First, ports.First+ports.Count-1)})
			return
		}
		claims = append(claims, c)
	}
	for i, p := range s.Ports[:ports] {
		for _, v := range s.VIPs {
			if !r.serves(v) || !r.permits(v) {
				continue
			}
			if r.unguarded(v, p.Proto) {
				refusedClaims = append(refusedClaims, unguardedProblem(s, i, v))
				continue
			}
			add(claim{services.FrontendKey{Addr: v.Addr, Port: p.Port, Proto: p.Proto}, v.Kind, i},
				fmt.Sprintf("spec.ports[%d].port", i))
		}
		for f, any := range [2]header.Addr{services.AnyIPv4, services.AnyIPv6} {
			if p.NodePort != 0 && s.Families[f] {
				add(claim{services.FrontendKey{Addr: any, Port: p.NodePort, Proto: p.Proto}, services.NodePort, i},
					fmt.Sprintf("spec.ports[%d].nodePort", i))
			}
		}
	}
	slices.SortFunc(claims, compareClaims)
	return claims, append(refusedClaims, r.notPermitted(s)...)
}

// replyPorts are those at which a frontend would take packets that are replies to source addresses
// and ports of ours. An address that the node does not have may be a VIP, too, if it was allocated:
// replies to flows are told from requests, and only those that come late are not. An external IP is
// anybody's, who would get those.
func (r *run) replyPorts(c claim) services.PortRange {
	own := false // a source address of ours
	switch c.key.Addr {
	case services.AnyIPv4:
		own = slices.ContainsFunc(r.cfg.SNAT4, r.acceptsNodePorts)
	case services.AnyIPv6:
		own = slices.ContainsFunc(r.cfg.SNAT6, r.acceptsNodePorts)
	default:
		flags := r.own[c.key.Addr].flags
		own = flags&services.AddrSNAT != 0
		if own && flags&(services.AddrNode|services.AddrLocal) == 0 && c.kind == services.ExternalIP {
			return services.OwnPorts
		}
	}
	if !own {
		return services.PortRange{}
	}
	return r.cfg.SNATPorts
}

func (r *run) acceptsNodePorts(a header.Addr) bool { return r.own[a].flags&services.AddrNode != 0 }

// dropFrontends removes from the snapshot the frontends that a unit loses.
func (r *run) dropFrontends(u *unit) {
	u.held = slices.DeleteFunc(u.held, func(k services.FrontendKey) bool {
		_, claimed := slices.BinarySearchFunc(u.claims, k,
			func(c claim, k services.FrontendKey) int { return steer.CompareKeys(c.key, k) })
		if claimed && r.winner(k) == u {
			return false
		}
		r.builder.DeleteFrontend(k)
		r.changed = true
		r.frontends[k]--
		return true
	})
}

// setFrontends puts the frontends that a unit wins into the snapshot, and returns a problem for
// each of the others.
func (r *run) setFrontends(u *unit) (lost []objects.Problem) {
	u.guard.renew(u.service, &r.cfg)
	if u.denied != "" {
		return nil
	}
	more := 0
	for _, c := range u.claims {
		if w := r.winner(c.key); w != u {
			if more++; more > objects.MaxFieldProblems {
				continue
			}
			lost = append(lost, objects.Problem{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", c.port),
				Severity: objects.Refused, Reason: objects.ReasonFrontendConflict,
				Message: fmt.Sprintf("%s %s belongs to Service %s/%s%s", c.kind, keyString(c.key), w.key.namespace,
					w.key.name, youngestNote(u.service))})
			continue
		}
		before, had := r.builder.Settings().FrontendByKey(c.key)
		f := r.frontend(u, c)
		if had {
			f.Allowed = before.Allowed
		}
		f.Allowed = r.allowed(u, c, f.Allowed)
		if u.ports[c.port].scheduler.InTurn() {
			if f.Turn = new(services.Turn); had && before.Turn != nil {
				f.Turn = before.Turn
			}
		}
		if had && *before == f {
			continue
		}
		if !had {
			r.frontends[c.key]++
			u.held = append(u.held, c.key)
		}
		r.builder.SetFrontend(&f)
		r.changed = true
	}
	if more > objects.MaxFieldProblems {
		lost = append(lost, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Reason:  objects.ReasonFrontendConflict,
			Message: fmt.Sprintf("%d more frontends belong to other Services", more-objects.MaxFieldProblems)})
	}
	return lost
}

// frontend returns the frontend of a claim that wins, without its source ranges.
func (r *run) frontend(u *unit, c claim) services.Frontend {
	p, fam := u.ports[c.port], objects.Family(!is4(c.key.Addr))
	outside, pod := r.policies(u.service, c.kind, fam)
	sets := &p.families[fam].sets
	return services.Frontend{
		Key: c.key, Kind: c.kind, Service: p.service,
		Outside: services.Rule{Set: sets[outside.set].set, KeepClient: outside.keep},
		Pod:     services.Rule{Set: sets[pod.set].set, KeepClient: pod.keep},
	}
}

func is4(a header.Addr) bool { return a.Is4() }

// keyString returns a frontend for messages: 192.0.2.1:80/TCP or *:30080/TCP.
func keyString(k services.FrontendKey) string {
	if k.Addr == services.AnyIPv4 || k.Addr == services.AnyIPv6 {
		return fmt.Sprintf("*:%d/%s", k.Port, objects.ProtocolName(k.Proto))
	}
	return endpointName(k.Addr, k.Port, k.Proto)
}
