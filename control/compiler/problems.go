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
	list    []objects.Problem // in order; valid if edits equals listed
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

// DeferProblems(true) makes compiles return no problems, because sorting thousands of problems
// takes longer than most changes. Problems of Services that claim a frontend of another
// one may then become stale: the caller calls RefreshProblems as long as StaleProblems returns
// true, and reads ProblemLists.
func (ps *problems) DeferProblems(on bool) { ps.later = on }

// set replaces the problems of a unit: the frontends that it loses, and the others.
func (ps *problems) set(u *unit, others, lost []objects.Problem) {
	u.others = nil
	if len(lost) > 0 {
		u.others = others
	}
	now := slices.Concat(others, lost)
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

// refreshClaims bounds the claims that one RefreshProblems compares: a millisecond.
const refreshClaims = 2048

// StaleProblems reports whether problems name Services that have lost a frontend since. It is false
// unless problems are deferred.
func (s *state) StaleProblems() bool { return len(s.contest.stale) > 0 }

// RefreshProblems brings some of the stale problems up to date.
func (s *state) RefreshProblems() {
	s.refresh(refreshClaims)
	s.contest.winners = emptied(s.contest.winners)
	s.problems.finish()
}

// refresh brings stale problems up to date, until it has compared that many claims.
func (s *state) refresh(claims int) {
	for u := range s.contest.stale {
		if claims <= 0 {
			return
		}
		claims -= 1 + len(u.claims)
		delete(s.contest.stale, u)
		s.problems.set(u, u.others, s.contest.conflicts(u))
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
