package compiler

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/control/objects"
)

// minKept is the least number of a port's endpoints that are kept for the next merge: fewer are
// sorted again in a tenth of a millisecond.
const minKept = 1024

// merged are a port's endpoints as the slices have them, kept for the next merge.
type merged struct {
	from    []offer  // in order of slices
	all     []member // in order of compareListed, with duplicates and without refs
	spare   []member // memory for the next all
	refused map[*objects.Slice][]objects.Problem
}

// compareListed orders a port's endpoints. Of duplicates the first one stays: one that is not
// terminating before one that is, then by readiness, then by the remaining fields, so that the
// order of slices does not matter.
func compareListed(a, b member) int {
	if a.addr != b.addr || a.port != b.port {
		return compareMembers(a, b)
	}
	return cmp.Or(cmp.Compare(rank(b.flags), rank(a.flags)), cmp.Compare(b.hints, a.hints),
		cmp.Compare(b.weight, a.weight), cmp.Compare(a.flags, b.flags))
}

func (m *member) same(o *member) bool { return m.addr == o.addr && m.port == o.port }

// merge collects the endpoints of a port from all slices that have it, each once, in order. listed
// is how many it went through. The result is valid until the next merge.
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
	m := &f.merged
	if u.reread || len(m.all) == 0 || !r.mergeChanged(u, m, from) {
		*m = merged{all: r.scratch.members[:0]}
		for _, o := range from {
			m.all = r.appendOffer(m.all, u, m, o)
		}
		r.scratch.members = m.all
		slices.SortFunc(m.all, compareListed)
		m.all = slices.Clone(m.all)
	}
	m.from = from
	if len(m.refused) > 0 {
		for _, o := range from {
			problems = append(problems, m.refused[o.slice]...)
		}
	}
	members = r.scratch.members[:0]
	for i := range m.all {
		if i == 0 || !m.all[i].same(&m.all[i-1]) {
			members = append(members, m.all[i])
		}
	}
	r.scratch.members = members
	if len(m.all) < r.keepFrom {
		*m = merged{}
	}
	return members, listed, problems
}

// mergeChanged exchanges the endpoints of slices that came, went or changed since the last merge.
// What the others' endpoints depend on must not have changed (unit.reread).
func (r *run) mergeChanged(u *unit, m *merged, from []offer) (ok bool) {
	var gone, added []member
	diff(m.from, from, func(o offer) *objects.Slice { return o.slice },
		func(o offer) {
			gone = r.appendOffer(gone, u, m, o)
			delete(m.refused, o.slice)
		},
		func(o offer) { added = r.appendOffer(added, u, m, o) })
	slices.SortFunc(gone, compareListed)
	slices.SortFunc(added, compareListed)
	all, ok := patch(m.spare, m.all, gone, added, compareListed)
	if ok {
		m.all, m.spare = all, m.all
	}
	return ok
}

// appendOffer appends a slice's endpoints, and notes in m which of them are refused.
func (r *run) appendOffer(to []member, u *unit, m *merged, o offer) []member {
	to, refused := r.appendMembers(to, u, o.slice, o.port)
	for _, f := range objects.LimitProblems(refused) {
		if m.refused == nil {
			m.refused = map[*objects.Slice][]objects.Problem{}
		}
		m.refused[o.slice] = append(m.refused[o.slice], f.Problem(o.slice.ID))
	}
	return to
}
