// Package tracker collects the objects that sources read, and returns the changes since the last
// call.
//
//	k8s, files ──Batch──▶ Tracker ──objects.Changes──▶ the control loop
//
// tracker.go has the Tracker; problems.go lists the problems of objects before they are compiled,
// and where each was read; triggers.go measures how long changes wait. A Feed is a source from the
// point of view of the control loop.
//
// Of the packages of control it imports objects only. Sources and the control loop import it; the
// compiler does not, because it takes Changes as an argument.
package tracker
