package flowtable

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/flowtable/conn"
)

// finder collects flows of a dead process that may be shed, so that a full table admits new flows
// after a restart as fast as before. Of each kind that has rings of made or changed flows (ringOf),
// it collects as many as the rings of all workers hold.
type finder [madeRings][]found

// found is a flow as an entry of a ring, and its last-seen time.
type found struct {
	entry uint32
	seen  Ticks
}

// note collects a flow if its kind has rings.
func (d *finder) note(t *Table, a *arena, i uint32, m conn.Meta) {
	kind := ringOf(m)
	if kind == shedNever {
		return
	}
	if l := &d[kind-firstRing]; uint32(len(*l)) < max(minEntries, t.ringEntries(a, kind)) {
		*l = append(*l, found{i | a.flow(i).sum<<a.indexBits, m.Seen()})
	}
}

// rings returns rings of the collected flows, the oldest first.
func (d *finder) rings(now Ticks) (rings [madeRings]*ring) {
	for k, l := range d {
		if len(l) == 0 {
			continue
		}
		slices.SortFunc(l, func(a, b found) int { return -cmp.Compare(now.Since(a.seen), now.Since(b.seen)) })
		r := newRing(uint32(len(l)))
		for _, f := range l {
			r.push(f.entry)
		}
		r.tail.Store(r.next)
		rings[k] = r
	}
	return rings
}
