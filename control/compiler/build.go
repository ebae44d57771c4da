package compiler

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// port is a compiled service port.
type port struct {
	id       services.ServiceID
	spec     objects.ServicePort
	service  *services.Service // as it is in the snapshot
	families [2]familySet

	identity  uint64
	scheduler services.Scheduler
}

// familySet has a service port's endpoints of one family.
type familySet struct {
	members  []member // in order of address and port
	sets     [numSets]chosenSet
	topology services.Topology // the hints that the cluster set follows
	keep     keepMode
}

// member is an endpoint of a service port.
type member struct {
	addr   header.Addr
	port   uint16
	flags  services.BackendFlags
	hints  hintBits
	weight uint16
	ref    services.BackendRef
}

func compareMembers(a, b member) int {
	return cmp.Or(objects.CompareAddrs(a.addr, b.addr), cmp.Compare(a.port, b.port))
}

// scratch is memory that builds reuse.
type scratch struct {
	members []member
	refs    []services.BackendRef
	names   []string
	addrs   []header.Addr
	hints   []hintBits
}

// build compiles a dirty unit. Unchanged parts keep their identity: a backend keeps its ref, a set
// of the same backends its table.
func (r *run) build(u *unit) {
	r.setUses(u)
	problems := slices.Clone(u.refusedClaims)
	if u.denied != "" && u.service.Served() {
		problems = u.denials()
	}
	r.matchPorts(u)
	u.shares.renew(u)
	delete(r.short, u)
	room := maxServiceBackends
	for i, p := range u.ports {
		r.setScheduler(u, p)
		before, had := p.families, room
		for f := range p.families {
			problems = append(problems, r.buildFamily(u, p, f == 1, &room)...)
		}
		if had >= 0 && room < 0 {
			problems = append(problems, objects.Problem{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", i),
				Severity: objects.Refused,
				Message: fmt.Sprintf("with the endpoints of this port the Service has more than %d (endpoints times "+
					"ports), the most that one can have; the rest of them and later ports' get nothing",
					maxServiceBackends)})
		}
		problems = append(problems, unmatched(u, i, p.spec)...)
		r.losePins(p, before)
		r.loseAffinity(p, u.service.Affinity)
		r.setServicePort(u, p)
	}
	problems = append(problems, r.setFrontends(u)...)
	problems = append(problems, u.objectProblems()...)
	slices.SortFunc(problems, objects.CompareProblems)
	problems = slices.Compact(problems) // a problem of every port is reported once
	if !slices.Equal(problems, u.problems) {
		u.problems, r.reported = problems, true
		r.noteProblems(u)
	}
	r.setHealthCheck(u)
}

// matchPorts keeps the ports that the Service still has, by name and protocol, and removes the
// others.
func (r *run) matchPorts(u *unit) {
	old := u.ports
	u.ports = nil
	if u.fits > 0 {
		for _, spec := range u.service.Ports[:u.fits] {
			at := slices.IndexFunc(old, func(p *port) bool {
				return p != nil && p.spec.Name == spec.Name && p.spec.Proto == spec.Proto
			})
			p := &port{}
			if at >= 0 {
				p, old[at] = old[at], nil
			} else {
				p.id, p.identity = r.serviceID(u, &spec), serviceIdentity(u.key, spec)
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
	topology := [2]services.Topology{p.families[0].topology, p.families[1].topology}
	if s := p.service; s != nil && s.Port == p.spec.Port && s.AffinitySeconds == u.service.Affinity &&
		s.Scheduler == p.scheduler && s.Topology == topology && s.LocalExternal == u.service.LocalExternal &&
		s.LocalInternal == u.service.LocalInternal && slices.Equal(s.Backends, refs) {
		return
	}
	p.service = &services.Service{
		ID: p.id, Namespace: u.key.namespace, Name: u.key.name,
		PortName: p.spec.Name, Proto: p.spec.Proto, Port: p.spec.Port, Backends: slices.Clone(refs),
		Identity: p.identity, AffinitySeconds: u.service.Affinity,
		Scheduler: p.scheduler, Topology: topology,
		LocalExternal: u.service.LocalExternal, LocalInternal: u.service.LocalInternal,
	}
	r.builder.SetService(p.service)
	r.changed = true
}

// setScheduler sets the scheduler of the Service, or that of the configuration.
func (r *run) setScheduler(u *unit, p *port) {
	p.scheduler = r.cfg.Scheduler
	if s := u.service.Scheduler; s != nil {
		p.scheduler = *s
	}
}

func (r *run) removePort(p *port) {
	before := p.families
	for f := range p.families {
		r.setMembers(p, &p.families[f], nil, keepNone)
		for _, s := range p.families[f].sets {
			r.tables.release(s.table)
		}
		p.families[f].sets = [numSets]chosenSet{}
	}
	r.losePins(p, before)
	r.builder.DeleteService(p.id)
	r.ids.retireService(p.id, r.generation)
	r.changed = true
}

// setUses records the addresses of a unit's endpoints, so that the unit is built again when one of
// them becomes, or stops being, an address that no endpoint can have.
func (r *run) setUses(u *unit) {
	now := r.scratch.addrs[:0]
	if u.fits > 0 {
		for _, s := range u.slices {
			for _, e := range s.Endpoints {
				now = append(now, e.Addr)
			}
		}
	}
	slices.SortFunc(now, objects.CompareAddrs)
	now = slices.Compact(now)
	r.scratch.addrs = now
	old := u.uses
	if slices.Equal(old, now) {
		return
	}
	for _, a := range old {
		if _, stays := slices.BinarySearchFunc(now, a, objects.CompareAddrs); !stays {
			r.uses.remove(a, u.num)
		}
	}
	for _, a := range now {
		if _, was := slices.BinarySearchFunc(old, a, objects.CompareAddrs); !was {
			r.uses.add(a, u.num)
		}
	}
	u.uses = slices.Clone(now)
}

// buildFamily compiles the endpoints of one family of a service port. It subtracts the number of
// endpoints from room, which is what the Service may still have; negative means that there was too
// little.
func (r *run) buildFamily(u *unit, p *port, v6 bool, room *int) (problems []objects.Problem) {
	f := &p.families[objects.Family(v6)]
	var members []member
	if u.service.Families[objects.Family(v6)] && *room >= 0 {
		members, problems = r.merge(u, p.spec, v6)
	}
	if over := len(members) - maxPortBackends; over > 0 {
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Message: fmt.Sprintf("%d endpoints are more than the %d a service port can have", len(members),
				maxPortBackends)})
		members = members[:maxPortBackends]
	}
	if *room -= len(members); *room < 0 {
		members, *room = members[:max(0, len(members)+*room)], -1
	}
	n := r.needs(u.service, p.spec, objects.Family(v6))
	if short := r.setMembers(p, f, members, n.keep); short > 0 {
		r.short[u] = true
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Message: fmt.Sprintf("%d endpoints have no place among the %d backends of all services together", short,
				services.MaxBackends)})
	}
	return append(problems, r.setSets(u, p, f, n)...)
}

// merge collects the endpoints of a port from all slices, each once, in order.
func (r *run) merge(u *unit, sp objects.ServicePort, v6 bool) (all []member, problems []objects.Problem) {
	all = r.scratch.members[:0]
	for _, s := range u.slices {
		if s.V6 != v6 {
			continue
		}
		for _, p := range s.Ports {
			if p.Name == sp.Name && p.Proto == sp.Proto {
				var refused []objects.FieldProblem
				all, refused = r.appendMembers(all, u, s, p)
				for _, f := range objects.LimitProblems(refused) {
					problems = append(problems, f.Problem(s.ID))
				}
			}
		}
	}
	r.scratch.members = all
	// Of duplicates the first one stays: one that is not terminating before one that is, then by
	// readiness, then by the remaining fields, so that the order of slices does not matter.
	slices.SortFunc(all, func(a, b member) int {
		return cmp.Or(compareMembers(a, b), cmp.Compare(rank(b.flags), rank(a.flags)), cmp.Compare(b.hints, a.hints),
			cmp.Compare(b.weight, a.weight))
	})
	return slices.CompactFunc(all, func(a, b member) bool { return compareMembers(a, b) == 0 }), problems
}

func rank(f services.BackendFlags) int {
	n := 0
	for i, good := range [...]bool{
		f&services.BackendLocal != 0, f&services.BackendServing != 0, f&services.BackendReady != 0,
		f&services.BackendTerminating == 0,
	} {
		if good {
			n |= 1 << i
		}
	}
	return n
}

// appendMembers adds a slice's endpoints at one of its ports, except those that no packet can be
// sent to from here.
func (r *run) appendMembers(
	all []member, u *unit, s *objects.Slice, p objects.SlicePort,
) (_ []member, refused []objects.FieldProblem) {
	hints, weights := r.hints(s), u.shares.get(s)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if why := r.notAnEndpoint(u, e.Addr, p.Port, p.Proto); why != "" {
			refused = append(refused, objects.FieldProblem{Field: "endpoints", Message: why, Severity: objects.Refused})
			continue
		}
		m := member{addr: e.Addr, port: p.Port, flags: e.Flags, weight: 1}
		if weights != nil {
			m.weight = weights[i]
		}
		if name := s.Node(e); name != "" && name == r.cfg.NodeName {
			m.flags |= services.BackendLocal
		}
		if e.ForNodes != 0 {
			m.hints |= hintedNode | hints[e.ForNodes-1]&hintsNode
		}
		if e.ForZones != 0 {
			m.hints |= hintedZone | hints[e.ForZones-1]&hintsZone
		}
		if m.hints&hintsNode != 0 {
			m.flags |= services.BackendHintNode
		}
		if m.hints&hintsZone != 0 {
			m.flags |= services.BackendHintZone
		}
		if len(r.drains) > 0 && (r.drains[Drain{e.Addr, 0}] || r.drains[Drain{e.Addr, p.Port}]) {
			m.flags |= services.BackendDrained
		}
		all = append(all, m)
	}
	return all, refused
}

// hints returns for each hint set of a slice whether it has this node's name or zone.
func (r *run) hints(s *objects.Slice) []hintBits {
	list := r.scratch.hints[:0]
	for _, names := range s.HintSets {
		var h hintBits
		if slices.Contains(names, r.cfg.NodeName) {
			h |= hintsNode
		}
		if r.zone != "" && slices.Contains(names, r.zone) {
			h |= hintsZone
		}
		list = append(list, h)
	}
	r.scratch.hints = list
	return list
}

// setMembers replaces the backends of a family by members, and sets their refs. It returns how many
// members got no number.
func (r *run) setMembers(p *port, f *familySet, members []member, keep keepMode) (short int) {
	old := f.members
	if f.keep == keep && slices.EqualFunc(old, members, func(a, b member) bool { b.ref = a.ref; return a == b }) {
		return 0
	}
	for _, m := range old {
		at, stays := slices.BinarySearchFunc(members, m, compareMembers)
		if !stays {
			r.builder.DeleteBackend(m.ref)
			r.ids.retireBackend(m.ref, p.id, r.generation)
			r.changed = true
		} else {
			members[at].ref = m.ref
			if members[at] != m {
				r.setBackend(p, members[at])
			}
		}
	}
	for i := range members {
		m := &members[i]
		if m.ref != 0 {
			continue
		}
		var ok bool
		if m.ref, ok = r.backendRef(p, m); !ok {
			short++
			continue
		}
		r.setBackend(p, *m)
	}
	members = slices.Clone(slices.DeleteFunc(members, func(m member) bool { return m.ref == 0 }))
	r.setKeeps(p, old, f.keep, -1)
	r.setKeeps(p, members, keep, +1)
	f.members, f.keep = members, keep
	return short
}

func (r *run) setBackend(p *port, m member) {
	r.builder.SetBackend(services.Backend{Addr: m.addr, Port: m.port, Proto: p.spec.Proto, Flags: m.flags, Ref: m.ref,
		Service: p.id, Weight: m.weight})
	r.changed = true
}

// setKeeps counts the members whose clients may keep their address. Their replies carry no address
// of ours, so the kernel program steers them by their source, whether or not the members take new
// flows.
func (r *run) setKeeps(p *port, members []member, keep keepMode, by int32) {
	for _, m := range members {
		if keep == keepAll || keep == keepLocal && m.flags&services.BackendLocal != 0 {
			r.countKeep(steer.KeepSource{Addr: m.addr, Port: m.port, Proto: p.spec.Proto}, by)
		}
	}
}

// endpointName returns 10.0.0.1:80/TCP or [2001:db8::1]:80/TCP.
func endpointName(a header.Addr, port uint16, proto uint8) string {
	b := netip.AddrPortFrom(a.Netip(), port).AppendTo(make([]byte, 0, 54))
	b = append(b, '/')
	return string(append(b, objects.ProtocolName(proto)...))
}

// objectProblems returns what is wrong with the objects of the unit by themselves.
func (u *unit) objectProblems() (problems []objects.Problem) {
	if u.service != nil {
		for _, f := range u.service.Problems {
			problems = append(problems, f.Problem(u.service.ID))
		}
	}
	for _, s := range u.slices {
		for _, f := range s.Problems {
			problems = append(problems, f.Problem(s.ID))
		}
	}
	return problems
}

// noteProblems keeps the set of units that have problems, so that gather does not visit the others.
func (r *run) noteProblems(u *unit) {
	if len(u.problems) > 0 {
		r.withProblems[u] = true
	} else {
		delete(r.withProblems, u)
	}
}
