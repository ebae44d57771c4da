package tracker

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
)

// TroubleEdits counts changes after which Locate may say something else of the same
// problems of compiling.
func (t *Tracker) TroubleEdits() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.troubles
}

// place is where the version that is used was read; the zero Source if none is.
func (o *tracked) place() objects.Source {
	if w := o.winner(); w != nil {
		return w.source
	}
	return objects.Source{}
}

// noteTrouble keeps troubled and troubles after a change of an object that was used
// from a place before.
func (t *Tracker) noteTrouble(id objects.ObjectID, o *tracked, before objects.Source) {
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
func (t *Tracker) Locate(compiled []objects.Problem) []objects.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]objects.Problem, 0, len(compiled)+len(t.troubled)+len(t.reports))
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
	slices.SortFunc(all, objects.CompareProblems)
	return all
}

// trouble lists what is wrong with an object before it is compiled.
func (o *tracked) trouble(id objects.ObjectID) (problems []objects.Problem) {
	w := o.winner()
	for i := range o.versions {
		v := &o.versions[i]
		for _, f := range v.bad {
			p := f.Problem(id)
			p.Source, p.Serving, p.Reason = v.source, v.good != nil && v == w, objects.ReasonInvalidObject
			problems = append(problems, p)
		}
		if w != nil && v != w && v.good != nil {
			problems = append(problems, objects.Problem{Source: v.source, Object: id, Severity: objects.Refused, Reason: objects.ReasonDuplicate,
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
