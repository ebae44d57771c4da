package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// appendMembers adds a slice's endpoints at one of its ports, except the endpoints that this
// gateway cannot send packets to.
func (r *run) appendMembers(
	all []member, u *unit, s *objects.Slice, p objects.SlicePort,
) (_ []member, refused []objects.FieldProblem) {
	hints, weights := r.hints(s), u.shares.get(s)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if why := r.contest.notAnEndpoint(u, e.Addr, p.Port, p.Proto); why != "" {
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
		if r.drains.has(e.Addr, p.Port) {
			m.flags |= services.BackendDrained
		}
		all = append(all, m)
	}
	return all, refused
}

// hints returns, for each set of hints of a slice, whether it has this node's name or zone.
func (r *run) hints(s *objects.Slice) []hintBits {
	list := r.scratch.hints[:0]
	for _, names := range s.HintSets {
		var h hintBits
		if slices.Contains(names, r.cfg.NodeName) {
			h |= hintsNode
		}
		if r.zones.here != "" && slices.Contains(names, r.zones.here) {
			h |= hintsZone
		}
		list = append(list, h)
	}
	r.scratch.hints = list
	return list
}

// setMembers replaces the backends of a family by members, and sets their refs. It returns how many
// members got no number because none is free.
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
		if m.ref, ok = r.ids.backendRef(p, m); !ok {
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

// setKeep counts a member to which clients may keep their address. Its replies do not carry an
// address of this gateway, so the kernel program steers them by their source, whether or not the
// member takes new flows.
func (r *run) setKeep(p *port, m member, keeps bool, by int32) {
	if keeps {
		r.kept.add(steer.KeepSource{Addr: m.addr, Port: m.port, Proto: p.spec.Proto}, by)
	}
}
