package loop_test

import (
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/test/bed/machine"
)

// TestCostlyChange is the processor time that the loop's goroutine spends for a change of a Service
// of 65,000 endpoints with weights, and for putting a table of it into force: others wait as long.
// It is not wall time, which has what the machine does besides. The few longest changes are
// those that need new memory from the system.
//
//	go test ./control/loop -run TestCostlyChange -v
func TestCostlyChange(t *testing.T) {
	if testing.Short() {
		t.Skip("builds tables of 4 million slots")
	}
	table := newTable(few.Tracker())
	addCostly(table.tracker)
	table.pass()
	table.compiler.DeferTables(true)
	var changes, installs []time.Duration
	for n := range 201 {
		table.tracker.Upsert(controltest.Source, costlySlice(n*7919%costlySlices, n+1))
		changes = append(changes, machine.CPUTime(table.pass))
		if n%50 != 49 {
			continue
		}
		for j := table.compiler.NextTable(); j != nil; j = table.compiler.NextTable() {
			j.Build()
			installs = append(installs, machine.CPUTime(func() {
				s, _, _ := table.compiler.Install(j)
				table.publisher.Publish(s)
			}))
		}
	}
	slices.Sort(changes)
	slices.Sort(installs)
	t.Logf("a change: p50 %v, p90 %v, p99 %v, max %v; a table into force: p50 %v, max %v", quantile(changes, 50),
		quantile(changes, 90), quantile(changes, 99), quantile(changes, 100), quantile(installs, 50),
		quantile(installs, 100))
	if p90 := quantile(changes, 90); p90 > slow(10*time.Millisecond) {
		t.Errorf("a change takes %v (p90)", p90)
	}
	if len(installs) == 0 || quantile(installs, 100) > slow(10*time.Millisecond) {
		t.Errorf("putting a table into force takes up to %v", installs)
	}
}
