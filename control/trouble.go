package control

import (
	"fmt"
	"slices"
)

// troubleEdits counts changes after which Locate may say something else of the same
// problems of compiling.
func (t *Tracker) troubleEdits() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.troubles
}

// place is where the version that is used was read; the zero Source if none is.
func (o *tracked) place() Source {
	if w := o.winner(); w != nil {
		return w.source
	}
	return Source{}
}

// noteTrouble keeps troubled and troubles after a change of an object that was used
// from a place before.
func (t *Tracker) noteTrouble(id ObjectID, o *tracked, before Source) {
	was := t.troubled[id]
	is := len(o.versions) > 1 || len(o.versions) == 1 && len(o.versions[0].bad) > 0
	if is {
		t.troubled[id] = true
	} else if was {
		delete(t.troubled, id)
	}
	if was || is || before != o.place() {
		t.troubles++
	}
}

// Locate returns every outstanding problem, in order: those of compiling, which
// know the object but not where it was read, and the Tracker's own.
func (t *Tracker) Locate(compiled []Problem) []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Problem, 0, len(compiled)+len(t.troubled)+len(t.reports))
	for _, p := range compiled {
		if o := t.objects[p.Object]; o != nil {
			if w := o.winner(); w != nil {
				p.Source = w.source
			}
		}
		all = append(all, p)
	}
	for id := range t.troubled {
		all = append(all, t.objects[id].trouble(id)...)
	}
	for _, problems := range t.reports {
		all = append(all, problems...)
	}
	slices.SortFunc(all, compareProblems)
	return all
}

// trouble lists what is wrong with an object before it is compiled.
func (o *tracked) trouble(id ObjectID) (problems []Problem) {
	w := o.winner()
	for i := range o.versions {
		v := &o.versions[i]
		for _, f := range v.bad {
			p := f.problem(id)
			p.Source, p.Serving, p.Reason = v.source, v.good != nil && v == w, ReasonInvalidObject
			problems = append(problems, p)
		}
		if w != nil && v != w && v.good != nil {
			problems = append(problems, Problem{Source: v.source, Object: id, Severity: Refused, Reason: ReasonDuplicate,
				Message: fmt.Sprintf("is also in %v, and that one is used", w.source)})
		}
	}
	return problems
}

// objectStatus lists every object at every place, in order.
func (t *Tracker) objectStatus() []ObjectStatus {
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
		return compareSources(a.Source, b.Source)
	})
	return all
}

// setIll keeps the set of units that have problems, so that listing them costs nothing
// for those that have none.
func (r *run) setIll(u *unit) {
	if len(u.problems) > 0 {
		r.ill[u] = true
	} else {
		delete(r.ill, u)
	}
}
