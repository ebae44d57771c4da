// Package faults is the fault plan: what may go wrong around a gateway, how it is injected, what
// must hold then, and which tests show it. The plan is a table; docs/faults.md is that table.
//
// `make faults` runs all its tests, package by package, as root. A fault at a random moment is
// injected SLUICE_FAULT_RUNS times: 5 in `make test`, 200 in `make faults`.
package faults
