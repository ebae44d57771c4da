package compiler

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// build compiles a dirty unit. Parts that did not change keep their identity: a backend keeps its
// ref, and a set of the same backends keeps its table.
func (r *run) build(u *unit) {
	r.tables.inlined = 0
	r.addrs.setUses(u, r.keepFrom)
	problems := slices.Clone(u.refusedClaims)
	if u.denied != "" && u.service.Served() {
		problems = u.denials()
	}
	r.matchPorts(u)
	if u.shares.renew(u.service) {
		u.reread = true
	}
	delete(r.ids.short, u)
	room, offered := maxServiceBackends, newOffers(u.slices, u.wanted())
	for i, p := range u.ports {
		p.scheduler = r.cfg.schedulerOf(u.service)
		p.check, p.hasCheck = r.cfg.checkOf(u.service, &p.spec)
		p.check.ProxyHeader = u.service.ProxyProtocol.Of(&p.spec)
		before, had := p.families, room
		for f := range p.families {
			problems = append(problems, r.buildFamily(u, p, f == 1, &room, offered)...)
		}
		if had >= 0 && room < 0 {
			what := "endpoints"
			if r.cfg.direct(u.service) {
				what = "nodes"
			}
			problems = append(problems, objects.Problem{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", i),
				Severity: objects.Refused,
				Message: fmt.Sprintf("with the %s of this port the Service has more than %d (%s times ports), the "+
					"most that one can have; the rest of them and later ports' get nothing", what,
					maxServiceBackends, what)})
		}
		problems = append(problems, offered.unmatched(u.service, i, p.key())...)
		r.lostPins.losePins(p, before, r.generation, &r.scratch)
		r.lostPins.loseAffinity(p, u.service.Affinity, r.generation)
		r.setServicePort(u, p)
	}
	u.reread, u.moved = false, nil
	delete(r.contest.behind, u)
	u.shares.sweep(u.slices)
	lost := r.setFrontends(u)
	problems = append(problems, u.objectProblems()...)
	problems = append(problems, r.directProblems(u)...)
	r.problems.set(u, problems, lost)
	r.healthChecks.set(u, &r.scratch)
	r.endpointChecks.setChecks(u)
}

// matchPorts keeps the ports that the Service still has, by name and protocol. It removes the
// others.
func (r *run) matchPorts(u *unit) {
	old := u.ports
	u.ports = nil
	at := make(map[portID]int, len(old))
	for i, p := range old {
		at[p.key()] = i
	}
	if u.fits > 0 {
		for _, spec := range u.service.Ports[:u.fits] {
			p := &port{}
			if i, was := at[portID{spec.Name, spec.Proto}]; was {
				p, old[i] = old[i], nil
			} else {
				p.id, p.identity = r.ids.serviceID(u.key, &spec), serviceIdentity(u.key, spec)
			}
			p.spec = spec
			u.ports = append(u.ports, p)
		}
	}
	for _, p := range old {
		if p != nil {
			r.removePort(p)
		}
	}
}

// setServicePort puts a port into the snapshot if the port changed.
func (r *run) setServicePort(u *unit, p *port) {
	refs := r.scratch.refs[:0]
	for f := range p.families {
		for _, m := range p.families[f].members {
			refs = append(refs, m.ref)
		}
	}
	r.scratch.refs = refs
	proxyProtocol := u.service.ProxyProtocol.Of(&p.spec)
	limits, direct := u.service.Limits.Over(r.cfg.Limits), r.cfg.direct(u.service)
	if direct {
		limits = services.Limits{} // the gateway sees no answers, so it cannot count established connections
	}
	topology := [2]services.Topology{p.families[0].topology, p.families[1].topology}
	if s := p.service; s != nil && s.Port == p.spec.Port && s.AffinitySeconds == u.service.Affinity &&
		s.Scheduler == p.scheduler && s.ProxyProtocol == proxyProtocol && s.Direct == direct &&
		s.Routed == u.service.Routed && s.Limits == limits &&
		s.Topology == topology && s.LocalExternal == u.service.LocalExternal &&
		s.LocalInternal == u.service.LocalInternal && slices.Equal(s.Backends, refs) {
		return
	}
	p.service = &services.Service{
		ID: p.id, Namespace: u.key.namespace, Name: u.key.name,
		PortName: p.spec.Name, Proto: p.spec.Proto, Port: p.spec.Port, Backends: slices.Clone(refs),
		Identity: p.identity, AffinitySeconds: u.service.Affinity,
		Scheduler: p.scheduler, ProxyProtocol: proxyProtocol, Direct: direct, Routed: u.service.Routed,
		Limits: limits, Topology: topology,
		LocalExternal: u.service.LocalExternal, LocalInternal: u.service.LocalInternal,
	}
	r.builder.SetService(p.service)
	r.changed = true
}

func (r *run) removePort(p *port) {
	before := p.families
	for f := range p.families {
		r.setMembers(p, &p.families[f], nil, keepNone)
		for which := range p.families[f].sets {
			r.tables.dropSet(&p.families[f].sets[which])
		}
	}
	r.lostPins.losePins(p, before, r.generation, &r.scratch)
	r.builder.DeleteService(p.id)
	r.ids.retireService(p.id, r.generation)
	r.changed = true
}

// buildFamily compiles the endpoints of one family of a service port. room is the number of
// endpoints that the Service may still have. buildFamily subtracts the number of listed endpoints,
// with duplicates and refused ones, and sets room to -1 if there are too many.
func (r *run) buildFamily(u *unit, p *port, v6 bool, room *int, o *offers) (problems []objects.Problem) {
	f := &p.families[objects.Family(v6)]
	var members []member
	listed := 0
	f.ownNode = false
	direct := r.cfg.direct(u.service)
	if direct || !u.service.Families[objects.Family(v6)] || *room < 0 {
		f.merged = merged{}
	}
	switch {
	case !u.service.Families[objects.Family(v6)] || *room < 0:
	case direct:
		members, listed, problems = r.nodeMembers(u, p, f, o.at[p.key()], v6)
	default:
		members, listed, problems = r.merge(u, f, o.at[p.key()], v6)
	}
	if over := len(members) - maxPortBackends; over > 0 {
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Message: fmt.Sprintf("%d endpoints are more than the %d a service port can have", len(members),
				maxPortBackends)})
		members = members[:maxPortBackends]
	}
	if listed > *room {
		members, *room = members[:max(0, min(len(members), *room))], -1
	} else {
		*room -= listed
	}
	r.endpointChecks.applyHealth(u, p, members)
	n := r.cfg.needs(u.service, p.spec, objects.Family(v6))
	if short := r.setMembers(p, f, members, n.keep); short > 0 {
		r.ids.short[u] = true
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Message: fmt.Sprintf("%d endpoints have no place among the %d backends of all services together", short,
				services.MaxBackends)})
	}
	return append(problems, r.tables.setSets(u, p, f, n)...)
}

// merge collects the endpoints of a port from the offers of one family. listed is how many the
// slices list. The result is valid until the next merge.
func (r *run) merge(u *unit, f *familySet, offered []offer, v6 bool) (
	members []member, listed int, problems []objects.Problem,
) {
	from := make([]offer, 0, len(offered))
	for _, o := range offered {
		if o.slice.V6 == v6 {
			from = append(from, o)
			listed += len(o.slice.Endpoints)
		}
	}
	read := func(to []member, o offer) ([]member, []objects.FieldProblem) {
		return r.appendMembers(to, u, o.slice, o.port)
	}
	members, problems = f.merged.merge(from, u.reread, u.moved, read, r.scratch.members, r.keepFrom)
	r.scratch.members = members
	return members, listed, problems
}
