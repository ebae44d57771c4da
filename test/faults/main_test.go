package main

import "testing"

// TestPlanNamesTests: each row of the plan names tests, and each of them exists.
func TestPlanNamesTests(t *testing.T) {
	packages, names, err := plan("../..")
	if err != nil || len(packages) < 10 || len(names["test/e2e"]) < 20 {
		t.Errorf("%d packages, %v of test/e2e: %v", len(packages), names["test/e2e"], err)
	}
}
