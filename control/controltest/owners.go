package controltest

import (
	"fmt"
	"slices"
	"testing"

	"sluice.dev/sluice/fastpath/services"
)

// Owners is an Owners that fails the test if a number has two meanings at once.
type Owners struct {
	t       *testing.T
	Known   map[services.BackendRef]bool
	snaps   []*services.Snapshot // in use
	retired map[services.BackendRef]services.ServiceID
	Oldest  uint64
	Opened  int
}

// NewOwners returns one that knows no number.
func NewOwners(t *testing.T) *Owners {
	return &Owners{t: t, Known: map[services.BackendRef]bool{}, retired: map[services.BackendRef]services.ServiceID{}}
}

// Published notes a snapshot that is in use until oldest passes it.
func (o *Owners) Published(s *services.Snapshot) {
	o.snaps = append(slices.DeleteFunc(o.snaps, func(s *services.Snapshot) bool { return s.Generation < o.Oldest }), s)
}

// Open fails the test if the number still has another meaning.
func (o *Owners) Open(r services.BackendRef) {
	o.Opened++
	if o.Known[r] {
		o.t.Fatalf("ref %#x is given out twice", r)
	}
	for known := range o.inUse(r.Index()) {
		o.t.Fatalf("index %d is given out while a snapshot in use knows it as %v", r.Index(), known)
	}
	o.Known[r] = true
}

// inUse finds who has an index in a snapshot that a worker may hold.
func (o *Owners) inUse(index uint32) map[string]bool {
	found := map[string]bool{}
	for _, s := range o.snaps {
		if s.Generation < o.Oldest {
			continue
		}
		for r := range o.Known {
			if r.Index() == index && s.Backend(r) != nil {
				found[fmt.Sprintf("%v in generation %d", s.Backend(r), s.Generation)] = true
			}
		}
	}
	return found
}

// Retire fails the test if the number has no meaning, or was retired.
func (o *Owners) Retire(r services.BackendRef, of services.ServiceID) {
	if !o.Known[r] || o.retired[r] != 0 {
		o.t.Fatalf("ref %#x is retired twice", r)
	}
	o.retired[r] = of
}

// Close fails the test if the number was not retired.
func (o *Owners) Close(r services.BackendRef, of services.ServiceID) {
	if !o.Known[r] || o.retired[r] != of {
		o.t.Fatalf("ref %#x of %d is taken back: known %v, retired of %d", r, of, o.Known[r], o.retired[r])
	}
	delete(o.Known, r)
	delete(o.retired, r)
}

// Forget is of no interest here.
func (o *Owners) Forget(services.ServiceID) {}
