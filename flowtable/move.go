package flowtable

import (
	"errors"

	"sluice.dev/sluice/flowtable/conn"
)

// errNoFit means that a table is too small for the flows to move into it.
var errNoFit = errors.New("flowtable: the flows do not fit")

// moveFlows makes a table of c's size in mem and copies the flows of old to it, a table that a dead
// process left. It does not change the memory of old; read converts the first word of a record. The
// new table keeps old's hash key, and so the flows' sums. Established connections, which are never
// shed, are copied first. If force is set, flows that do not fit are lost; otherwise moveFlows
// fails with errNoFit.
func moveFlows(old *Table, read func(conn.Meta) conn.Meta, mem []byte, c Config, now Time, force bool,
) (*Table, Recovery, error) {
	c.HashKey = old.head.secret
	t, err := New(mem, c)
	if err != nil {
		return nil, Recovery{}, err
	}
	t.head.incarnation = old.head.incarnation + 1
	rec := Recovery{Moved: true, Unnoted: t.head.incarnation&unnoted != 0, FoundFlows: old.head.flows,
		FoundVersion: old.head.version}
	m := mover{h: &Handle{t: t, secret: &t.secret}, old: old, now: now.Ticks(), force: force, rec: &rec,
		read: read}
	for f := range t.arenas {
		if err := m.family(&old.arenas[f], &t.arenas[f]); err != nil {
			return nil, Recovery{}, err
		}
	}
	return t, rec, nil
}

type mover struct {
	h     *Handle // of the new table
	old   *Table
	read  func(conn.Meta) conn.Meta // converts a record's first word of old
	now   Ticks
	force bool
	rec   *Recovery
	found finder // of the family that is moved
}

// family moves the flows of one arena.
func (m *mover) family(from, to *arena) error {
	m.found = finder{}
	for _, first := range [2]bool{true, false} {
		for i := uint32(1); i <= from.records && from.flows != 0; i++ {
			w := m.read(from.flow(i).load())
			if w.Held() && first {
				if err := m.held(from, to, i, w); err != nil {
					return err
				}
				continue
			}
			if w.State() == None || w.Held() || (w.State() == Established) != first {
				continue
			}
			if err := m.flow(from, to, i, w); err != nil {
				return err
			}
		}
	}
	m.h.t.leftover[family(to.v6)] = m.found.rings(m.now)
	return nil
}

// flow moves one record, or counts the reason why it is not moved. w is the record's first word,
// converted to this version.
func (m *mover) flow(from, to *arena, i uint32, w conn.Meta) error {
	f := from.flow(i)
	hs := m.h.secret.both(from, i)
	switch {
	case !f.whole(w, &hs, m.now):
		m.h.t.torn(m.rec, w)
		return nil
	case m.h.t.lifetimes.Expired(w, m.now) && !m.h.t.Grouped():
		m.rec.Expired++
		return nil
	}
	result := full
	if at := to.fresh.Load(); at <= to.flows && to.flows != 0 {
		to.copyFrom(from, at, i, w)
		if result = m.h.reinsert(to, at, &hs); result == inserted {
			to.fresh.Store(at + 1)
			m.rec.Recovered++
			live := &m.h.t.recovered[family(to.v6)]
			live[None]++
			live[w.State()]++
			m.found.note(m.h.t, to, at, w)
			return nil
		}
		to.flow(at).meta.Store(0) // the next flow gets the record
	}
	switch {
	case result == taken:
		m.h.t.torn(m.rec, w) // two records have one key, as in recoverFlow
	case m.force:
		m.lose(w, hs[ReplySide])
	default:
		return errNoFit
	}
	return nil
}

// lose counts a flow that does not fit. Its backend may still answer, so its port rests.
func (m *mover) lose(w conn.Meta, reply uint64) {
	m.rec.Lost++
	m.h.t.noteLoss()
	if until := m.h.t.restsUntil(w, m.now); until.Since(m.now) > 0 {
		m.h.t.restingOf(w.Proto()).begin(reply, until)
	}
}

// held moves the record of an ended flow that holds its port, if the new table has a Group.
func (m *mover) held(from, to *arena, i uint32, w conn.Meta) error {
	if !m.h.t.Grouped() {
		return nil
	}
	result := full
	if at := to.fresh.Load(); at <= to.records && to.flows != 0 {
		to.copyFrom(from, at, i, w)
		if result = m.h.recoverHeld(to, at); result == inserted {
			to.fresh.Store(at + 1)
		} else {
			to.flow(at).meta.Store(0)
		}
	}
	switch {
	case result == inserted:
	case result == taken:
		m.h.t.torn(m.rec, w)
	case m.force:
		m.lose(w, m.h.secret.both(from, i)[ReplySide])
	default:
		return errNoFit
	}
	return nil
}

// copyFrom copies record i of another arena to record at, with w as its first word. As in
// recoverFlow, it does not copy the owner and binding of the dead process.
func (a *arena) copyFrom(from *arena, at, i uint32, w conn.Meta) {
	f, g := a.flow(at), from.flow(i)
	if a.v6 {
		a.six[at].addr = from.six[i].addr
	} else {
		a.four[at].addr = from.four[i].addr
	}
	for side := range f.ports {
		f.ports[side].Store(g.ports[side].Load())
	}
	f.created, f.sum = g.created, g.sum
	f.next.Store(g.next.Load()) // see conn.MetaOpening
	f.meta.Store(uint64(w))
	f.delta = a.deltaOf(at)
}
