// Package steer is the words in which the control loop and the kernel program speak of what is
// sent to user space: frontends, node ports, addresses of ours, and backends whose replies are
// caught by their source.
//
//	compiler ──Change{Open, Close}──▶ loop ──Set──▶ kernel program (Steering)
//	                                       ──Set──▶ live flows     (Flows)
//
// A Set is in a fixed order and has each thing once. It is a leaf: the compiler, the loop and
// what stands behind the loop's interfaces import it, and it imports no other package of
// control.
package steer
