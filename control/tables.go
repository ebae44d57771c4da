package control

import (
	"slices"

	"sluice.dev/sluice/control/maglev"
)

// tableStore keeps one copy of equal Maglev tables: those of all sets of one
// backend, and those of services with the same endpoints.
type tableStore map[uint64][]*sharedTable

// sharedTable is a table and how many sets use it. The slots are immutable.
type sharedTable struct {
	slots []uint16
	sum   uint64
	users int
}

// get returns the table of a set's backends. The caller releases it.
func (ts tableStore) get(names []string, seed [2]uint64) *sharedTable {
	slots := maglev.Table(names, nil, seed, maglev.Size(len(names)))
	sum := checksum(slots)
	for _, t := range ts[sum] {
		if slices.Equal(t.slots, slots) {
			t.users++
			return t
		}
	}
	t := &sharedTable{slots, sum, 1}
	ts[sum] = append(ts[sum], t)
	return t
}

// release forgets a table with its last user. Nil is released without effect.
func (ts tableStore) release(t *sharedTable) {
	if t == nil {
		return
	}
	if t.users--; t.users > 0 {
		return
	}
	rest := slices.DeleteFunc(ts[t.sum], func(o *sharedTable) bool { return o == t })
	if len(rest) == 0 {
		delete(ts, t.sum)
	} else {
		ts[t.sum] = rest
	}
}

// checksum is FNV-1a over slots.
func checksum(slots []uint16) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, s := range slots {
		h = (h ^ uint64(s)) * 0x100000001b3
	}
	return h
}
