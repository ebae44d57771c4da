// Package loop is the control loop: the one goroutine that compiles what changed, publishes it,
// and steers by it.
//
//	         ┌──────────────────────────── Loop ────────────────────────────┐
//	Tracker ─┼▶ Changes ──▶ Compiler ──┬──▶ Publisher ──▶ workers           │
//	         │                         └──▶ pending ────▶ Steering, Flows   │
//	         └──────────────────────────────────────────────────────────────┘
//
// loop.go is its order; closing.go closes what no flow needs any more, pending.go remembers what
// the kernel program has not done yet, selfcheck.go compares the table with one compiled anew
// and repairs it, status.go says how far it is, sync.go tells the Observer of each pass.
//
// What it needs of others are interfaces: tracker.Feed (sources), and here Steering (the kernel
// program), Flows (the flow table), Observer and HealthChecks. Everything it needs is state, not
// history.
//
// A Snapshot is published by one atomic store. What an older one alone knows is given up only
// when no worker can hold it any more (Publisher.Oldest).
//
// Of control it imports objects, tracker, steer and compiler; whoever reports on it imports it.
package loop
