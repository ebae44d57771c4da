// Package size scales tests that could check any number of cases.
package size

import (
	"os"
	"strconv"
	"testing"
)

// runsVariable is the number of random faults (package test/faults).
const runsVariable = "SLUICE_FAULT_RUNS"

// Runs returns few, or each times SLUICE_FAULT_RUNS if it is set.
func Runs(t testing.TB, few, each int) int {
	t.Helper()
	text := os.Getenv(runsVariable)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q: it must be a number from 1 on", runsVariable, text)
	}
	return n * each
}
