// Package observer sees from outside what a system under test does: which packets arrive
// at a host and when the kernel received them, and what a process uses.
//
// It asks nothing of the system, so the same figures come from Sluice and from any
// system that it is compared with.
package observer
