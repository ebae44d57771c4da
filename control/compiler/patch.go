package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/header"
)

// A Service may have 65,000 endpoints in 650 slices. A change of one slice must not cost what
// reading and sorting all of them does, so the endpoints of a unit are kept in order, with
// duplicates, and the slice's former endpoints are exchanged for its new ones.

// patch writes old without the elements of gone and with those of added to result, whose memory it
// uses: a sorted list with duplicates, as all three are. It returns false if an element of gone is
// not in old.
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

// diff calls gone and added for the elements that only one of two lists has. Both are in order of
// the slice that an element is of. An element that differs is gone and added.
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

// setUses records the addresses of a unit's endpoints, so that the unit is built again when one of
// them becomes, or stops being, an address that no endpoint can have.
func (r *run) setUses(u *unit) {
	now := u.slices
	if u.fits == 0 {
		now = nil
	}
	var gone, added []header.Addr
	list := func(to *[]header.Addr) func(*objects.Slice) {
		return func(s *objects.Slice) {
			for i := range s.Endpoints {
				*to = append(*to, s.Endpoints[i].Addr)
			}
		}
	}
	diff(u.usedBy, now, func(s *objects.Slice) *objects.Slice { return s }, list(&gone), list(&added))
	if len(gone) == 0 && len(added) == 0 {
		u.usedBy = slices.Clone(now)
		return
	}
	slices.SortFunc(gone, objects.CompareAddrs)
	slices.SortFunc(added, objects.CompareAddrs)
	before := u.uses
	after, ok := patch(u.usesSpare, before, gone, added, objects.CompareAddrs)
	if !ok {
		panic("compiler: the addresses of a unit are not those of its slices")
	}
	for _, a := range slices.Compact(gone) {
		if _, stays := slices.BinarySearchFunc(after, a, objects.CompareAddrs); !stays {
			r.uses.remove(a, u.num)
		}
	}
	for _, a := range slices.Compact(added) {
		if _, was := slices.BinarySearchFunc(before, a, objects.CompareAddrs); !was {
			r.uses.add(a, u.num)
		}
	}
	u.uses, u.usesSpare, u.usedBy = after, nil, slices.Clone(now)
	if len(before) >= r.keepFrom {
		u.usesSpare = before
	}
}
