package flowtable

import (
	"errors"
	"fmt"
	"math/bits"
)

// Validate walks the whole table and returns the errors it finds, up to maxValidationErrors. No
// handle may use the table meanwhile. It checks that
//
//   - every live flow has exactly its two keys in the index, each in its own chain;
//   - every occupied slot is a member of exactly one home and names a live flow;
//   - no two flows share a key, and so no source port towards one backend;
//   - no record is pending, and every record is live, free, in limbo or fresh,
//     and only one of these;
//   - the counters agree with the records, and so do the loads of backends.
func (t *Table) Validate() error {
	v := validation{t: t, loads: make(map[uint64]int32)}
	for f := range t.arenas {
		if a := &t.arenas[f]; a.flows != 0 {
			v.arena(a)
		}
	}
	v.counters()
	v.allLoads()
	return errors.Join(v.errs...)
}

type validation struct {
	t    *Table
	errs []error
	live [2][16]int32
	open int32 // copies of connections

	loads map[uint64]int32 // by index of the backend
}

const maxValidationErrors = 20

func (v *validation) errorf(format string, args ...any) {
	if len(v.errs) < maxValidationErrors {
		v.errs = append(v.errs, fmt.Errorf("flowtable: "+format, args...))
	}
}

func (v *validation) arena(a *arena) {
	keys := v.index(a)
	where := v.lists(a)
	held := int32(0)
	for i := uint32(1); i <= a.records; i++ {
		m := a.flow(i).load()
		v.load(a.ref(i), a.flow(i))
		switch {
		case m.Held():
			held++
			if keys[i] != 1<<ReplySide || where[i] != "" {
				v.errorf("record %d holds its port, has keys %02b in the index, want 10, and is %q", a.ref(i), keys[i],
					where[i])
			}
		case m.Pending():
			v.errorf("record %d is pending, and no handle is creating it", a.ref(i))
		case m.Live():
			v.live[family(a.v6)][None]++
			v.live[family(a.v6)][m.State()]++
			if v.t.Grouped() && ownerOf(v.t.mark(a, i).Load()) != 0 {
				v.open += int32(b2i(m.State().Connection()))
			}
			if keys[i] != 3 {
				v.errorf("flow %d has keys %02b in the index, want 11", a.ref(i), keys[i])
			}
			if where[i] != "" {
				v.errorf("flow %d is live and %s", a.ref(i), where[i])
			}
		case where[i] == "":
			v.errorf("record %d is lost: neither live nor free nor in limbo nor fresh", a.ref(i))
		case keys[i] != 0:
			v.errorf("dead record %d has keys %02b in the index", a.ref(i), keys[i])
		}
	}
	if n := v.t.group.held[family(a.v6)].Load(); n != held {
		v.errorf("%d records hold their ports, the counter says %d", held, n)
	}
}

// index checks every slot and returns the sides of each record that it found.
func (v *validation) index(a *arena) (keys []uint8) {
	keys = make([]uint8, a.records+1)
	owners := make([]int8, len(a.buckets)*bucketSlots)
	unique := make(map[key]uint32)
	for home := range a.homes {
		for m := a.buckets[home].ctl.Load() & memberMask; m != 0; m &= m - 1 {
			b, n := a.at(home, bits.TrailingZeros64(m))
			owners[(home+uint64(bits.TrailingZeros64(m)/bucketSlots))*bucketSlots+uint64(n)]++
			slot := b.slots[n].Load()
			i, side := slotIndex(slot), slotSideOf(slot)
			if i == 0 || i > a.records {
				v.errorf("home %d has a member without a record: slot %#x", home, slot)
				continue
			}
			keys[i] |= 1 << side
			k := a.keyOf(i, side)
			hash := v.t.secret.hash(a.v6, &k)
			if a.home(hash) != home || b.candidates(uint8(hash))&(1<<n) == 0 {
				v.errorf(
					"flow %d side %d: home %d holds it, its key belongs to %d; or its tag is wrong", a.ref(i), side,
					home, a.home(hash),
				)
			}
			if other, dup := unique[k]; dup {
				v.errorf("slots %#x and %#x have one key", slot, other)
			}
			unique[k] = slot
		}
	}
	for at, n := range owners {
		slot := a.buckets[at/bucketSlots].slots[at%bucketSlots].Load()
		if occupied := slot != 0; int8(b2i(occupied)) != n {
			v.errorf(
				"slot %d of bucket %d holds %#x and is a member of %d homes", at%bucketSlots, at/bucketSlots, slot, n,
			)
		}
	}
	return keys
}

// lists returns the place of each record that is not live.
func (v *validation) lists(a *arena) (where []string) {
	t := v.t
	where = make([]string, a.records+1)
	put := func(r Ref, place string) {
		if (r&refV6 != 0) != a.v6 {
			return
		}
		if i := r.index(); i == 0 || i > a.records {
			v.errorf("%s holds record %d, which does not exist", place, r)
		} else if where[i] != "" {
			v.errorf("record %d is %s and %s", r, where[i], place)
		} else {
			where[i] = place
		}
	}
	walk := func(l list, place string) {
		for n, r := l.n, l.first; n > 0 && r != 0; n, r = n-1, Ref(t.flow(r).next.Load()) {
			put(r, place)
		}
	}
	stacked := func(s *stack, place string) {
		for r := Ref(s.top.Load()); r != 0; {
			below, n := t.stacked(r)
			walk(list{first: r, n: n}, place)
			r = below
		}
	}
	stacked(&a.freed, "on the free stack")
	for id := range t.orphans {
		if o := &t.orphans[id]; t.orphaned[id/64].Load()&(1<<(id%64)) != 0 {
			for _, b := range o.batches[:o.n] {
				walk(b.list, "orphaned in limbo")
			}
		}
	}
	for _, h := range t.handles {
		if h == nil {
			continue
		}
		m := &h.local[family(a.v6)]
		walk(m.current, "in a magazine")
		walk(m.full, "in a full magazine")
		for i := m.freshNext; i < m.freshEnd; i++ {
			put(a.ref(i), "fresh in a handle")
		}
		walk(h.limbo.open, "in open limbo")
		for k := range h.limbo.n {
			walk(h.limbo.batches[(h.limbo.first+k)%len(h.limbo.batches)].list, "in limbo")
		}
	}
	for i := a.fresh.Load(); i <= a.records; i++ {
		put(a.ref(i), "fresh")
	}
	return where
}

func (v *validation) counters() {
	sums := v.t.recovered
	for i := range v.t.participants {
		v.t.participants[i].addTo(&sums)
	}
	if sums != v.live {
		v.errorf("counters %v, but counts of the records %v", sums, v.live)
	}
	if n := v.t.group.open.Load(); n != v.open {
		v.errorf("%d copies of connections, the counter says %d", v.open, n)
	}
}

// load checks whether a flow is counted if and only if it must be. A flow without a binding is new,
// or was made by an earlier process.
func (v *validation) load(r Ref, f *Flow) {
	o, m := f.owner.Load(), f.load()
	is, counts := o&counted != 0, m.Counts() && uint32(o) != 0
	if is {
		v.loads[o&(MaxBackends-1)]++
	}
	if is && !counts || !is && counts && f.Binding() != 0 {
		v.errorf("flow %d, state %v, backend %d: counted %v", r, m.State(), uint32(o), is)
	}
}

func (v *validation) allLoads() {
	for i := range v.t.loads {
		if n := v.t.loads[i].Load(); n != v.loads[uint64(i)] {
			v.errorf("backend %d has a load of %d, its flows are %d", i, n, v.loads[uint64(i)])
		}
	}
}
