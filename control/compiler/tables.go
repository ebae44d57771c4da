package compiler

import (
	"slices"

	"sluice.dev/sluice/fastpath/services"
)

// tableKind is the meaning of an EndpointSet's table.
type tableKind uint8

const (
	noTable   tableKind = iota // all backends are equal or compared
	hashTable                  // the backend of each slot of a Maglev table
	turnTable                  // the backend of each turn
)

func tableOf(s services.Scheduler) tableKind {
	switch s {
	case services.Maglev, services.SourceHash, services.DestinationHash, services.Random:
		return hashTable
	case services.WeightedRoundRobin:
		return turnTable
	}
	return noTable
}

// tableStore keeps one copy of equal tables: those of all sets of one
// backend, and those of services with the same endpoints.
type tableStore map[uint64][]*sharedTable

// sharedTable is a table and how many sets use it. The slots are immutable.
type sharedTable struct {
	slots []uint16
	sum   uint64
	users int
}

// get returns the table with these slots; nil if there are none. The caller releases it.
func (ts tableStore) get(slots []uint16) *sharedTable {
	if len(slots) == 0 {
		return nil
	}
	return ts.add(slots, checksum(slots))
}

// add is get of at least one slot, with their checksum.
func (ts tableStore) add(slots []uint16, sum uint64) *sharedTable {
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

// share counts one more user. Nil is shared without effect.
func (ts tableStore) share(t *sharedTable) {
	if t != nil {
		t.users++
	}
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
