// Package steer has the types by which the control loop tells the kernel program what to send to
// user space: frontends, node ports, addresses of ours, and backends whose replies are steered by
// their source.
//
//	compiler ──Change{Open, Close}──▶ loop ──Set──▶ kernel program (Steering)
//	                                       ──Set──▶ live flows     (Flows)
//
// A Set is in a fixed order and has each thing once. It imports no other package of control. The
// compiler, the loop and the implementations of the loop's interfaces import it.
package steer
