package loop_test

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/test/bed/size"
)

// TestChangesBesideManyProblems: a change of a Service with problems takes little processor time
// beside 16,000 problems of others.
func TestChangesBesideManyProblems(t *testing.T) {
	const services, problems, changes = 2000, 8, 200
	table := newTable(few.Tracker())
	hostile := func(i, version int) {
		s := controltest.Service(few.Services + i)
		s.Namespace, s.Annotations = "hostile", map[string]string{}
		for k := range problems {
			s.Annotations[fmt.Sprintf("sluice.dev/x%d-%d", k, version)] = "y"
		}
		table.tracker.Upsert(controltest.Source, s)
	}
	for i := range services {
		hostile(i, 0)
	}
	loop, stop := table.run(t, &delays{first: make(chan struct{})})
	defer stop()
	before := usage(t)
	for i := range changes {
		hostile(i, 1)
		if err := loop.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	each := usage(t).Sub(before).Own / changes
	t.Logf("%v of processor time for a change", each)
	if each > slow(5*time.Millisecond) && !size.Race {
		t.Errorf("%v of processor time for a change, want 5ms at most", each)
	}
}
