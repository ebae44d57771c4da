package flowtable

import "fmt"

// A table can pass from one process to the next while its flows live. The shared memory has the
// complete state: records and index are consistent whenever no handle is between its Enter and
// Leave. So, unlike Recover, the next process keeps the index, and visits each record only once, in
// order.
//
// Free records are linked through themselves, and each process has its own lists of them. So once
// Assume is called, no other process may use the table: call Fits beforehand to check that Assume
// can succeed.

// Layout describes the memory of a table of a configuration. Two programs can share the memory if
// their layouts are equal.
func Layout(c Config) string { return layoutOf(c.IPv4Flows, c.IPv6Flows) }

// Layout describes the memory of the table, whose size may differ from the configured one.
func (t *Table) Layout() string { return layoutOf(t.arenas[0].flows, t.arenas[1].flows) }

func layoutOf(four, six uint32) string {
	return fmt.Sprintf("version %d, %d IPv4 and %d IPv6 flows", headVersion, four, six)
}

// Used returns how many records of each family were ever used. It fails if a handle is between its
// Enter and Leave. No handle may enter afterwards, unless the handover fails.
func (t *Table) Used() (used [2]uint32, err error) {
	for id := range t.participants[:t.watermark.Load()] {
		if t.participants[id].seen.Load() != offline {
			return used, fmt.Errorf("flowtable: handle %d is at work while the table is given away", id)
		}
	}
	for f := range t.arenas {
		if t.arenas[f].flows != 0 {
			used[f] = t.arenas[f].fresh.Load() - 1
		}
	}
	return used, nil
}

// Share returns the table in mem while another process still uses it, and changes nothing. Until
// Assume, handles may be registered but must not be used. It fails with ErrLayout if the memory
// holds another version or size.
func Share(mem []byte, c Config) (*Table, error) { return openView(mem, c) }

// Fits returns an error if Assume cannot take the table over. It changes nothing.
func (t *Table) Fits(used [2]uint32) error {
	for f := range t.arenas {
		if a := &t.arenas[f]; used[f] > a.records || a.flows == 0 && used[f] != 0 {
			return fmt.Errorf("flowtable: %d records were used, of %d", used[f], a.records)
		}
	}
	return nil
}

// Assume takes the table over from the process that used it at Share. That process must not use its
// handles any more, and none of them may be between Enter and Leave. used is the result of
// Table.Used in that process. If Assume returns an error, it has changed nothing.
//
// As after Recover, flows have no owner and no binding. The notes about abandoned flows and about
// resting keys of TCP and SCTP are lost. It takes about 20 ns for each record (BenchmarkAssume).
func (t *Table) Assume(used [2]uint32, now Time) error {
	if err := t.Fits(used); err != nil {
		return err
	}
	t.head.incarnation++
	t.resting[restingUDP].assume(now.Ticks(), t.maxRestTicks())
	for f := range t.arenas {
		if t.arenas[f].flows != 0 {
			t.assume(&t.arenas[f], used[f], now.Ticks())
		}
	}
	return nil
}

func (t *Table) assume(a *arena, used uint32, now Ticks) {
	d, live := finder{}, &t.recovered[family(a.v6)]
	for i := uint32(1); i <= used; i++ {
		f := a.flow(i)
		m := f.load()
		if f.owner.Load() != 0 { // a number of the previous process, see recoverFlow
			f.owner.Store(0)
		}
		if m.Held() {
			if t.Grouped() {
				t.group.held[family(a.v6)].Add(1)
				continue
			}
			k := a.keyOf(i, ReplySide)
			a.remove(t.secret.hash(a.v6, &k), slotOf(i, ReplySide))
			f.meta.Store(0) // nothing would release it
			continue
		}
		if m.State() == None {
			continue
		}
		f.bound.Store(0)
		live[None]++
		live[m.State()]++
		d.note(t, a, i, m)
	}
	a.fresh.Store(used + 1)
	t.refree(a, used)
	t.leftover[family(a.v6)] = d.rings(now)
}
