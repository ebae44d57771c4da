// Package observer measures a system under test from outside: the packets that arrive at a host
// with the kernel's receive times, and the resources that a process uses.
//
// It asks nothing of the system, so the same figures come from Sluice and from any
// system that it is compared with.
package observer
