package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// minKept is the number of a port's endpoints from which they are kept for the next merge: sorting
// fewer endpoints again takes a tenth of a millisecond.
const minKept = 1024

// merged are a port's endpoints as the slices have them, kept for the next merge.
type merged struct {
	from    []offer  // in order of slices
	all     []member // in order of compareListed, with duplicates and without refs
	spare   []member // memory for the next all
	refused map[*objects.Slice][]objects.Problem
}

// appender appends the endpoints of a slice at one of its ports, and returns the refused ones.
type appender func(to []member, o offer) ([]member, []objects.FieldProblem)

// merge collects the endpoints of a port from all slices that have it, each once, in order. again:
// it reads all slices, because endpoints may differ although their slices are the same. Otherwise
// only endpoints at the places in moved may differ in this way. The result uses the memory of buf.
// m keeps a copy of its own if there are at least minimum endpoints.
func (m *merged) merge(
	from []offer, again bool, moved map[services.FrontendKey]bool, read appender, buf []member, minimum int,
) (members []member, problems []objects.Problem) {
	if again || len(m.all) == 0 || !m.change(from, moved, read) {
		*m = merged{all: buf[:0]}
		for _, o := range from {
			m.all = m.read(m.all, o, read)
		}
		slices.SortFunc(m.all, compareListed)
		if buf = m.all; len(buf) >= minimum {
			m.all = slices.Clone(buf)
		}
	}
	m.from = from
	if len(m.refused) > 0 {
		for _, o := range from {
			problems = append(problems, m.refused[o.slice]...)
		}
	}
	members = buf[:0]
	for i := range m.all {
		if i == 0 || !m.all[i].same(&m.all[i-1]) {
			members = append(members, m.all[i])
		}
	}
	if len(m.all) < minimum {
		*m = merged{}
	}
	return members, problems
}

// change replaces the endpoints of slices that were added, removed or changed since the last merge,
// or the endpoints that moved. It returns false if it cannot; then all slices must be read.
func (m *merged) change(from []offer, moved map[services.FrontendKey]bool, read appender) (ok bool) {
	var gone, added []member
	if len(moved) > 0 { // before diff, which removes endpoints of a former slice as they are read now
		gone, added = m.again(moved, read)
	}
	diff(m.from, from, func(o offer) *objects.Slice { return o.slice },
		func(o offer) {
			gone = m.read(gone, o, read)
			delete(m.refused, o.slice)
		},
		func(o offer) { added = m.read(added, o, read) })
	slices.SortFunc(gone, compareListed)
	slices.SortFunc(added, compareListed)
	all, ok := patch(m.spare, m.all, gone, added, compareListed)
	if ok {
		m.all, m.spare = all, m.all
	}
	return ok
}

// again returns the endpoints at places that moved, as they were merged and as the slices have them
// now.
func (m *merged) again(moved map[services.FrontendKey]bool, read appender) (gone, added []member) {
	proto := m.from[0].port.Proto
	var addrs []header.Addr
	for k := range moved {
		if k.Proto != proto {
			continue
		}
		addrs = append(addrs, k.Addr)
		place := member{addr: k.Addr, port: k.Port}
		at, _ := slices.BinarySearchFunc(m.all, place, compareMembers)
		for ; at < len(m.all) && m.all[at].same(&place); at++ {
			gone = append(gone, m.all[at])
		}
	}
	slices.SortFunc(addrs, objects.CompareAddrs)
	for _, o := range m.from {
		if !slices.ContainsFunc(o.slice.Endpoints, func(e objects.Endpoint) bool {
			_, is := slices.BinarySearchFunc(addrs, e.Addr, objects.CompareAddrs)
			return is
		}) {
			continue
		}
		delete(m.refused, o.slice)
		for _, e := range m.read(nil, o, read) {
			if moved[services.FrontendKey{Addr: e.addr, Port: e.port, Proto: proto}] {
				added = append(added, e)
			}
		}
	}
	return gone, added
}

// read appends a slice's endpoints, and records the refused ones.
func (m *merged) read(to []member, o offer, read appender) []member {
	to, refused := read(to, o)
	for _, f := range objects.LimitProblems(refused) {
		if m.refused == nil {
			m.refused = map[*objects.Slice][]objects.Problem{}
		}
		m.refused[o.slice] = append(m.refused[o.slice], f.Problem(o.slice.ID))
	}
	return to
}
