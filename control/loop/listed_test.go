package loop_test

import (
	"fmt"
	"slices"
	"testing"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// TestWaitListed: problems that others bring about delay the listing of problems, and whoever waits
// until an object is applied is told of that object's problems nevertheless.
func TestWaitListed(t *testing.T) {
	table := newTable(few.Tracker())
	hostile := func(i, version int) {
		s := controltest.Service(few.Services + i)
		s.Namespace, s.Annotations = "hostile", map[string]string{}
		for k := range 8 {
			s.Annotations[fmt.Sprintf("sluice.dev/x%d-%d", k, version)] = "y"
		}
		table.tracker.Upsert(controltest.Source, s)
	}
	for i := range 2000 {
		hostile(i, 0)
	}
	loop, stop := table.run(t, &delays{first: make(chan struct{})})
	defer stop()
	for try := range 3 {
		hostile(try, 1) // to be listed
		if err := loop.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		id := objects.MakeObjectID(objects.KindService, "honest", fmt.Sprint("broken-", try))
		var b tracker.Batch
		b.Malformed(controltest.Source, id, "spec", "is broken")
		table.tracker.Apply(&b)
		if err := loop.WaitListed(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(loop.Status().Problems, func(p objects.Problem) bool { return p.Object == id }) {
			t.Errorf("the problem of %v is not listed when the wait for it ends", id)
		}
	}
}
