package compiler

import (
	"slices"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/fastpath/services"
)

// tableKind is the meaning of an EndpointSet's table.
type tableKind uint8

const (
	noTable   tableKind = iota // rr: backends in turn; lc, wlc, sed, nq: compared
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

// build returns the slots of a table over n backends; nil if their set needs no table. It calls
// names for the backends' names only if the table depends on them.
func (kind tableKind) build(names func() []string, weights []uint16, n int, key [2]uint64) []uint16 {
	switch {
	case n == 0:
		return nil
	case kind == hashTable:
		return maglev.Table(names(), widen(weights), key, maglev.Size(n))
	case kind == turnTable && weights != nil:
		return turns(weights, maglev.Size(n))
	}
	return nil
}

func widen(weights []uint16) (wide []uint32) {
	for _, w := range weights {
		wide = append(wide, uint32(w))
	}
	return wide
}

// slotsOf returns the size of a set's table.
func (kind tableKind) slotsOf(s *services.EndpointSet) int {
	if len(s.Backends) == 0 || kind == noTable || kind == turnTable && s.Weights == nil {
		return 0
	}
	return maglev.Size(len(s.Backends))
}

// tableStore keeps one copy of equal tables: all sets with one backend have equal tables, and so do
// services with the same endpoints.
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

// add is get for at least one slot. sum is their checksum.
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
