package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
)

// A Service may have 65,000 endpoints in 650 slices. A change of one slice must not cost as much as
// reading and sorting all endpoints. So the endpoints of a unit are kept in order, with duplicates,
// and the slice's former endpoints are replaced by its new ones.

// patch returns old without the elements of gone and with the elements of added, in the memory of
// result. All are sorted lists with duplicates. It returns false if an element of gone is not in
// old.
func patch[T comparable](result, old, gone, added []T, compare func(a, b T) int) ([]T, bool) {
	if n := len(old) - min(len(gone), len(old)) + len(added); n > cap(result) {
		result = make([]T, 0, n+n/16) // so that the next few that come need no new memory
	}
	result = result[:0]
	for len(gone) > 0 || len(added) > 0 {
		remove := len(gone) > 0 && (len(added) == 0 || compare(gone[0], added[0]) <= 0)
		next := &added
		if remove {
			next = &gone
		}
		at, _ := slices.BinarySearchFunc(old, (*next)[0], compare)
		result = append(result, old[:at]...)
		old = old[at:]
		if !remove {
			result = append(result, (*next)[0])
		} else if len(old) == 0 || old[0] != (*next)[0] {
			return nil, false
		} else {
			old = old[1:]
		}
		*next = (*next)[1:]
	}
	return append(result, old...), true
}

// diff calls gone and added for the elements that only one of two lists has. Both lists are in
// order of the elements' slices. A changed element is gone and added.
func diff[T comparable](old, now []T, slice func(T) *objects.Slice, gone, added func(T)) {
	for len(old) > 0 || len(now) > 0 {
		c := 0
		switch {
		case len(old) == 0:
			c = 1
		case len(now) == 0:
			c = -1
		case old[0] != now[0]:
			c = slice(old[0]).ID.Compare(slice(now[0]).ID)
		default:
			old, now = old[1:], now[1:]
			continue
		}
		if c <= 0 {
			gone(old[0])
			old = old[1:]
		}
		if c >= 0 {
			added(now[0])
			now = now[1:]
		}
	}
}
