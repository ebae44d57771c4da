// Package loop is the control loop: one goroutine that compiles changes, publishes the snapshot,
// and updates the kernel program.
//
//	         ┌──────────────────────────── Loop ────────────────────────────┐
//	Tracker ─┼▶ Changes ──▶ Compiler ──┬──▶ Publisher ──▶ workers           │
//	         │                         └──▶ pending ────▶ Steering, Flows   │
//	         └──────────────────────────────────────────────────────────────┘
//
// loop.go has the order of a pass; closing.go closes entries that no flow needs any more;
// pending.go has the outstanding changes of the kernel program; selfcheck.go compares the table
// with a freshly compiled one and repairs it; status.go reports progress; sync.go reports each pass
// to the Observer.
//
// It uses other parts by interfaces: tracker.Feed (sources), and here Steering (the kernel
// program), Flows (the flow table), Observer and HealthChecks. It works on state, not on a history
// of events.
//
// A Snapshot is published by one atomic store. Numbers that only older snapshots have are freed
// when no worker can hold such a snapshot any more (Publisher.Oldest).
//
// Of the packages of control it imports objects, tracker, steer and compiler; packages that report
// on the loop import it.
package loop
