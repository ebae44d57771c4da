// Package faults is the fault plan: the faults that may occur around a gateway, their injection,
// the conditions that must hold then, and the tests that show it. The plan is a table;
// docs/faults.md is that table.
//
// `make -C test faults` runs all its tests, package by package, as root. A fault at a random moment
// is injected SLUICE_FAULT_RUNS times: 5 in `make test`, 200 in `make -C test faults`.
package faults
