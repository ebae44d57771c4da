// Package steer has the types that describe which packets the kernel program redirects to user
// space: packets to frontends, node ports and the gateway's addresses, and replies of backends that
// are steered by their source.
//
//	compiler ──Change{Open, Close}──▶ loop ──Set──▶ kernel program (Steering)
//	                                       ──Set──▶ live flows     (Flows)
//
// A Set is sorted and has each rule once. The package imports no other package of control. The
// compiler, the loop and the implementations of the loop's interfaces import it.
package steer
