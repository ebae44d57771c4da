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
	check     objects.Check
	hasCheck  bool
}

// familySet has a service port's endpoints of one family.
type familySet struct {
	members []member // in order of address and port
	spare   []member // memory for the next members, where there are many; those of before the last build
	sets    [numSets]chosenSet
	down    int // members that are down
	// candidates are the members that a set could give new flows to, were they all up, in order;
	// only of a port that is checked.
	candidates []netip.AddrPort
	topology   services.Topology // the hints that the cluster set follows
	keep       keepMode
	merged     merged
}

// member is an endpoint of a service port.
type member struct {
	addr   header.Addr
	port   uint16
	flags  services.BackendFlags
	hints  hintBits
	weight uint16
	// share is the part of its weight that it gets, in tenths, while it starts slowly (SlowStart).
	share uint8
	ref   services.BackendRef
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
	in      []services.BackendRef // by index; all zero between uses
}

// chosen returns a list by backend index, to note refs in. The caller sets it to zero again.
func (s *scratch) chosen() []services.BackendRef {
	if s.in == nil {
		s.in = make([]services.BackendRef, services.MaxBackends)
	}
	return s.in
}

// build compiles a dirty unit. Unchanged parts keep their identity: a backend keeps its ref, a set
// of the same backends its table.
func (r *run) build(u *unit) {
	r.inlined = 0
	r.setUses(u)
	problems := slices.Clone(u.refusedClaims)
	if u.denied != "" && u.service.Served() {
		problems = u.denials()
	}
	r.matchPorts(u)
	if u.shares.renew(u) {
		u.reread = true
	}
	delete(r.short, u)
	room, offered := maxServiceBackends, u.offers()
	for i, p := range u.ports {
		p.scheduler = r.schedulerOf(u.service)
		p.check, p.hasCheck = r.checkOf(u.service, &p.spec)
		before, had := p.families, room
		for f := range p.families {
			problems = append(problems, r.buildFamily(u, p, f == 1, &room, offered)...)
		}
		if had >= 0 && room < 0 {
			problems = append(problems, objects.Problem{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", i),
				Severity: objects.Refused,
				Message: fmt.Sprintf("with the endpoints of this port the Service has more than %d (endpoints times "+
					"ports), the most that one can have; the rest of them and later ports' get nothing",
					maxServiceBackends)})
		}
		problems = append(problems, unmatched(u, i, p.spec, offered)...)
		r.losePins(p, before)
		r.loseAffinity(p, u.service.Affinity)
		r.setServicePort(u, p)
	}
	u.reread = false
	u.shares.sweep(u)
	problems = append(problems, r.setFrontends(u)...)
	problems = append(problems, u.objectProblems()...)
	slices.SortFunc(problems, objects.CompareProblems)
	problems = slices.Compact(problems) // a problem of every port is reported once
	problems = objects.LimitAlike(problems)
	if !slices.Equal(problems, u.problems) {
		u.problems, r.reported = problems, true
		r.noteProblems(u)
	}
	r.setHealthCheck(u)
	r.setChecks(u)
}

// matchPorts keeps the ports that the Service still has, by name and protocol, and removes the
// others.
func (r *run) matchPorts(u *unit) {
	old := u.ports
	u.ports = nil
	at := make(map[portID]int, len(old))
	for i, p := range old {
		at[portID{p.spec.Name, p.spec.Proto}] = i
	}
	if u.fits > 0 {
		for _, spec := range u.service.Ports[:u.fits] {
			p := &port{}
			if i, was := at[portID{spec.Name, spec.Proto}]; was {
				p, old[i] = old[i], nil
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
	limits := u.service.Limits.Over(r.cfg.Limits)
	topology := [2]services.Topology{p.families[0].topology, p.families[1].topology}
	if s := p.service; s != nil && s.Port == p.spec.Port && s.AffinitySeconds == u.service.Affinity &&
		s.Scheduler == p.scheduler && s.Limits == limits &&
		s.Topology == topology && s.LocalExternal == u.service.LocalExternal &&
		s.LocalInternal == u.service.LocalInternal && slices.Equal(s.Backends, refs) {
		return
	}
	p.service = &services.Service{
		ID: p.id, Namespace: u.key.namespace, Name: u.key.name,
		PortName: p.spec.Name, Proto: p.spec.Proto, Port: p.spec.Port, Backends: slices.Clone(refs),
		Identity: p.identity, AffinitySeconds: u.service.Affinity,
		Scheduler: p.scheduler, Limits: limits, Topology: topology,
		LocalExternal: u.service.LocalExternal, LocalInternal: u.service.LocalInternal,
	}
	r.builder.SetService(p.service)
	r.changed = true
}

// schedulerOf returns the scheduler of the Service, or that of the configuration.
func (r *run) schedulerOf(s *objects.Service) services.Scheduler {
	if s.Scheduler != nil {
		return *s.Scheduler
	}
	return r.cfg.Scheduler
}

func (r *run) removePort(p *port) {
	before := p.families
	for f := range p.families {
		r.setMembers(p, &p.families[f], nil, keepNone)
		for which := range p.families[f].sets {
			r.dropSet(&p.families[f].sets[which])
		}
	}
	r.losePins(p, before)
	r.builder.DeleteService(p.id)
	r.ids.retireService(p.id, r.generation)
	r.changed = true
}

// buildFamily compiles the endpoints of one family of a service port. It subtracts the number of
// endpoints that the slices list, also of duplicates and refused ones, from room, which is what the
// Service may still have; negative means that there was too little.
func (r *run) buildFamily(u *unit, p *port, v6 bool, room *int, o *offers) (problems []objects.Problem) {
	f := &p.families[objects.Family(v6)]
	var members []member
	listed := 0
	if u.service.Families[objects.Family(v6)] && *room >= 0 {
		members, listed, problems = r.merge(u, f, o.of(p.spec), v6)
	} else {
		f.merged = merged{}
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
	r.judge(u, p, members)
	n := r.needs(u.service, p.spec, objects.Family(v6))
	if short := r.setMembers(p, f, members, n.keep); short > 0 {
		r.short[u] = true
		problems = append(problems, objects.Problem{Object: u.service.ID, Severity: objects.Refused,
			Message: fmt.Sprintf("%d endpoints have no place among the %d backends of all services together", short,
				services.MaxBackends)})
	}
	return append(problems, r.setSets(u, p, f, n)...)
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
	i := 0
	for j := range members {
		m := &members[j]
		for ; i < len(old) && !m.same(&old[i]) && compareMembers(old[i], *m) < 0; i++ {
			r.removeMember(p, old[i], f.keep)
		}
		if i == len(old) || !m.same(&old[i]) {
			continue
		}
		m.ref = old[i].ref
		if *m != old[i] {
			r.setBackend(p, *m)
		}
		if before, now := f.keep.keeps(old[i]), keep.keeps(*m); before != now {
			r.setKeep(p, old[i], before, -1)
			r.setKeep(p, *m, now, +1)
		}
		i++
	}
	for ; i < len(old); i++ {
		r.removeMember(p, old[i], f.keep)
	}
	f.down = 0
	for i := range members {
		m := &members[i]
		if m.flags&services.BackendDown != 0 {
			f.down++
		}
		if m.ref != 0 {
			continue
		}
		var ok bool
		if m.ref, ok = r.backendRef(p, m); !ok {
			short++
			continue
		}
		r.setBackend(p, *m)
		r.setKeep(p, *m, keep.keeps(*m), +1)
	}
	if short > 0 {
		members = slices.DeleteFunc(members, func(m member) bool { return m.ref == 0 })
	}
	f.members, f.spare = append(f.spare[:0], members...), nil
	if len(old) >= r.keepFrom {
		f.spare = old
	}
	f.keep = keep
	return short
}

func (r *run) removeMember(p *port, m member, keep keepMode) {
	r.builder.DeleteBackend(m.ref)
	r.ids.retireBackend(m.ref, p.id, r.generation)
	r.setKeep(p, m, keep.keeps(m), -1)
	r.changed = true
}

func (r *run) setBackend(p *port, m member) {
	r.builder.SetBackend(services.Backend{Addr: m.addr, Port: m.port, Proto: p.spec.Proto, Flags: m.flags, Ref: m.ref,
		Service: p.id, Weight: m.weight})
	r.changed = true
}

// setKeep counts a member whose clients may keep their address. Its replies carry no address of
// ours, so the kernel program steers them by their source, whether or not the member takes new
// flows.
func (r *run) setKeep(p *port, m member, keeps bool, by int32) {
	if keeps {
		r.countKeep(steer.KeepSource{Addr: m.addr, Port: m.port, Proto: p.spec.Proto}, by)
	}
}

func (k keepMode) keeps(m member) bool {
	return k == keepAll || k == keepLocal && m.flags&services.BackendLocal != 0
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
