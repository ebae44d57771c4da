package compiler

import (
	"maps"
	"slices"

	"sluice.dev/sluice/control/objects"
)

// units are the Services and slices that are compiled. byKey and byNum have the same units.
type units struct {
	byKey map[unitKey]*unit
	byNum []*unit                      // by unit.num
	free  []int32                      // unit numbers
	owner map[objects.ObjectID]unitKey // of a slice
	// dirty are the units to build in the running compile.
	dirty map[*unit]bool
	// deniedBy, if not nil, decides instead of admission: it returns unit.denied and unit.unlisted.
	deniedBy func(unitKey) (denied string, unlisted bool)
}

func newUnits() units {
	return units{byKey: map[unitKey]*unit{}, owner: map[objects.ObjectID]unitKey{}}
}

// get returns the unit of a Service, making it if needed.
func (us *units) get(k unitKey) *unit {
	if u := us.byKey[k]; u != nil {
		return u
	}
	u := &unit{key: k}
	if us.deniedBy != nil {
		u.denied, u.unlisted = us.deniedBy(k)
	}
	if n := len(us.free); n > 0 {
		u.num, us.free = us.free[n-1], us.free[:n-1]
		us.byNum[u.num] = u
	} else {
		u.num = int32(len(us.byNum))
		us.byNum = append(us.byNum, u)
	}
	us.byKey[k] = u
	return u
}

// forget removes a unit without a Service and slices.
func (us *units) forget(u *unit) {
	delete(us.byKey, u.key)
	us.byNum[u.num] = nil
	us.free = append(us.free, u.num)
}

// setSlice records an EndpointSlice's new version, or nil. The slice may have moved from one
// Service to another.
func (us *units) setSlice(id objects.ObjectID, now *objects.Slice) {
	if before, ok := us.owner[id]; ok {
		u := us.byKey[before]
		if at, ok := slices.BinarySearchFunc(u.slices, id, compareSliceID); ok {
			u.slices = slices.Delete(u.slices, at, at+1)
		}
		delete(us.owner, id)
		us.dirty[u] = true
	}
	if now == nil || now.Service == "" {
		return
	}
	u := us.get(unitKey{id.Namespace, now.Service})
	at, _ := slices.BinarySearchFunc(u.slices, now.ID, compareSliceID)
	u.slices = slices.Insert(u.slices, at, now)
	us.owner[id] = u.key
	us.dirty[u] = true
}

func compareSliceID(s *objects.Slice, id objects.ObjectID) int { return s.ID.Compare(id) }

// slice returns the version of an EndpointSlice that is compiled; nil if there is none.
func (us *units) slice(id objects.ObjectID) *objects.Slice {
	u := us.byKey[us.owner[id]]
	if u == nil {
		return nil
	}
	if at, ok := slices.BinarySearchFunc(u.slices, id, compareSliceID); ok {
		return u.slices[at]
	}
	return nil
}

// reread marks a unit as dirty whose endpoints may differ although its slices are the same.
func (us *units) reread(num int32) {
	u := us.byNum[num]
	us.dirty[u], u.reread = true, true
}

// inOrder returns the dirty units in order of their keys.
func (us *units) inOrder() []*unit {
	return slices.SortedFunc(maps.Keys(us.dirty), func(a, b *unit) int { return a.key.compare(b.key) })
}
