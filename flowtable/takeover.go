package flowtable

import "fmt"

// A table goes from one process to the next while its flows live. All that counts is in the shared
// memory: records and index are whole whenever no handle is between its Enter and Leave. So the
// next process trusts the index, which Recover builds anew, and visits each record once, in order.
//
// Free records are linked through themselves, and each process has lists of its own of them. So
// from Assume on no other process may go on with the table: Fits checks beforehand what Assume
// needs.

// Layout says what memory a table of a configuration has, in words. Two programs can have the same
// memory if it is equal.
func Layout(c Config) string { return layoutOf(c.IPv4Flows, c.IPv6Flows) }

// Layout is that of the table as it is, which may have another size than was configured.
func (t *Table) Layout() string { return layoutOf(t.arenas[0].flows, t.arenas[1].flows) }

func layoutOf(four, six uint32) string {
	return fmt.Sprintf("version %d, %d IPv4 and %d IPv6 flows", headVersion, four, six)
}

// Used returns how many records of each family were ever used. It fails if a handle is at work,
// between its Enter and Leave; none may enter afterwards, but where the table is not given away.
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

// Share lays a table over memory in which another process's table is at work, and changes nothing.
// Until Assume, handles may be registered and must not be used. It fails with ErrLayout if the
// memory holds another version or size.
func Share(mem []byte, c Config) (*Table, error) { return openView(mem, c) }

// Fits reports whether Assume can take the table over: an error says why not. It changes nothing.
func (t *Table) Fits(used [2]uint32) error {
	for f := range t.arenas {
		if a := &t.arenas[f]; used[f] > a.records || a.flows == 0 && used[f] != 0 {
			return fmt.Errorf("flowtable: %d records were used, of %d", used[f], a.records)
		}
	}
	return nil
}

// Assume takes the table over from the process that Share found at work. None of its handles may be
// used any more, or be between Enter and Leave. used is what Table.Used says there. After an error
// nothing has been changed.
//
// As after Recover, flows have no owner and no binding. Which backends were abandoned is forgotten,
// and which keys of TCP and SCTP rest. It takes about 20 ns for each record (BenchmarkAssume).
func (t *Table) Assume(used [2]uint32, now Time) error {
	if err := t.Fits(used); err != nil {
		return err
	}
	t.head.incarnation++
	t.resting[restingUDP].assume(now.ticks())
	for f := range t.arenas {
		if t.arenas[f].flows != 0 {
			t.assume(&t.arenas[f], used[f], now.ticks())
		}
	}
	return nil
}

func (t *Table) assume(a *arena, used uint32, now ticks) {
	d, live := finder{}, &t.recovered[family(a.v6)]
	for i := uint32(1); i <= used; i++ {
		f := a.flow(i)
		m := f.load()
		if f.owner.Load() != 0 { // numbers of the process before, see recoverFlow
			f.owner.Store(0)
		}
		if m.state() == None {
			continue
		}
		f.bound.Store(0)
		live[None]++
		live[m.state()]++
		d.note(t, a, i, m)
	}
	a.fresh.Store(used + 1)
	t.refree(a, used)
	t.leftover[family(a.v6)] = d.rings(now)
}
