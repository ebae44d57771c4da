package tracker

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
)

// ProblemEdits counts the changes after which Locate may return another list for the same compiled
// problems.
func (t *Tracker) ProblemEdits() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.problemEdits
}

// ProblemCount returns the number of objects with problems of their own and of reported problems.
func (t *Tracker) ProblemCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.withProblems)
	for _, problems := range t.reports {
		n += len(problems)
	}
	return n
}

// place returns where the version in use was read; the zero Source if there is none.
func (o *tracked) place() objects.Source {
	if w := o.winner(); w != nil {
		return w.source
	}
	return objects.Source{}
}

// noteProblems updates withProblems and problemEdits after a change of an object. before is the
// place of the version that was in use until then.
func (t *Tracker) noteProblems(id objects.ObjectID, o *tracked, before objects.Source) {
	was := t.withProblems[id]
	is := len(o.versions) > 1 || len(o.versions) == 1 && len(o.versions[0].bad) > 0
	if is {
		t.withProblems[id] = true
	} else if was {
		delete(t.withProblems, id)
	}
	if was || is || before != o.place() {
		t.problemEdits++
	}
}

// Locate returns every outstanding problem in order: the compiled ones, which name the object but
// not where it was read, with that place, and the Tracker's own.
func (t *Tracker) Locate(compiled ...[]objects.Problem) []objects.Problem {
	all := t.located(compiled)
	slices.SortFunc(all, objects.CompareProblems) // without the lock: others write meanwhile
	return all
}

func (t *Tracker) located(compiled [][]objects.Problem) []objects.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Concat(compiled...)
	for i := range all {
		if o := t.objects[all[i].Object]; o != nil {
			all[i].Source = o.place()
		}
	}
	for id := range t.withProblems {
		all = append(all, t.objects[id].problems(id)...)
	}
	for _, problems := range t.reports {
		all = append(all, problems...)
	}
	return all
}

// problems lists the problems of an object before it is compiled.
func (o *tracked) problems(id objects.ObjectID) (problems []objects.Problem) {
	w := o.winner()
	for i := range o.versions {
		v := &o.versions[i]
		for _, f := range v.bad {
			p := f.Problem(id)
			p.Source, p.Serving, p.Reason = v.source, v.good != nil && v == w, objects.ReasonInvalidObject
			problems = append(problems, p)
		}
		if w != nil && v != w && v.good != nil {
			problems = append(problems, objects.Problem{Source: v.source, Object: id, Severity: objects.Refused,
				Reason:  objects.ReasonDuplicate,
				Message: fmt.Sprintf("is also in %v, and that one is used", w.source)})
		}
	}
	return problems
}

// ObjectStatus is one object at one place.
type ObjectStatus struct {
	Object  objects.ObjectID `json:"object"`
	Source  objects.Source   `json:"source"`
	Read    uint64           `json:"read"` // Status.Read when its newest version was taken in
	Applied bool             `json:"applied"`
	// State is current (the newest version is used), last good (an earlier one is),
	// malformed (there was no good one), or duplicate (another place's is used).
	State string `json:"state"`
}

// ObjectStatus lists every object at every place, in order.
func (t *Tracker) ObjectStatus() []ObjectStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]ObjectStatus, 0, len(t.objects))
	for id, o := range t.objects {
		w := o.winner()
		for i := range o.versions {
			v := &o.versions[i]
			s := ObjectStatus{Object: id, Source: v.source, Read: v.read, State: "current"}
			switch {
			case v.good == nil:
				s.State = "malformed"
			case v != w:
				s.State = "duplicate"
			case len(v.bad) > 0:
				s.State = "last good"
			}
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b ObjectStatus) int {
		if c := a.Object.Compare(b.Object); c != 0 {
			return c
		}
		return objects.CompareSources(a.Source, b.Source)
	})
	return all
}
