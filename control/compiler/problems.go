package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
)

// problems are the problems of all units.
type problems struct {
	units   map[*unit]bool    // that have any
	changed bool              // in the running compile
	edits   uint64            // how many compiles changed some
	list    []objects.Problem // in order, when edits was listed
	listed  uint64
	later   bool // see DeferProblems
}

// Problems returns the problems of the last compile, which the caller must not modify; ProblemEdits
// counts how often they changed.
func (ps *problems) Problems() []objects.Problem {
	if ps.listed == ps.edits {
		return ps.list
	}
	all := slices.Concat(ps.ProblemLists()...)
	slices.SortFunc(all, objects.CompareProblems)
	ps.list, ps.listed = all, ps.edits
	return all
}
func (ps *problems) ProblemEdits() uint64 { return ps.edits }

// ProblemLists returns the problems of the last compile as one list for each Service, in no order.
// No later compile changes the lists.
func (ps *problems) ProblemLists() [][]objects.Problem {
	lists := make([][]objects.Problem, 0, len(ps.units))
	for u := range ps.units {
		lists = append(lists, u.problems)
	}
	return lists
}

// DeferProblems: with true no compile returns problems; the caller calls ProblemLists instead.
// Sorting thousands of problems takes longer than most changes.
func (ps *problems) DeferProblems(on bool) { ps.later = on }

// set replaces the problems of a unit.
func (ps *problems) set(u *unit, now []objects.Problem) {
	slices.SortFunc(now, objects.CompareProblems)
	now = slices.Compact(now) // a problem of every port is reported once
	now = objects.LimitAlike(now)
	if slices.Equal(now, u.problems) {
		return
	}
	u.problems, ps.changed = now, true
	if len(now) > 0 {
		ps.units[u] = true
	} else {
		delete(ps.units, u)
	}
}

// finish ends a compile, and returns its problems.
func (ps *problems) finish() []objects.Problem {
	if ps.changed {
		ps.edits++
	}
	ps.changed = false
	if ps.later {
		return nil
	}
	return ps.Problems()
}
