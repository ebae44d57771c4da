// Package tracker gathers what sources read of objects, and hands out what changed.
//
//	k8s, files ──Batch──▶ Tracker ──objects.Changes──▶ the control loop
//
// tracker.go takes objects in and out, problems.go says what is wrong with them before they are
// compiled and where each was read, triggers.go measures how old what waits is. A Feed is a
// source as whoever waits for it sees it.
//
// Of control it imports objects alone. Sources import it, and the control loop; the compiler
// does not, as it gets Changes from whoever has them.
package tracker
