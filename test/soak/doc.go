// Package soak runs a gateway for a long time on real traffic while everything that may go wrong
// does, again and again.
//
//	clients                        gateway                       backends
//	  established TCP, UDP     ──► one process, or one    ──►      3 that stay
//	  new connections, bodies      after another                   1 whose server ends
//	  a flood's sender                                             1 that answers nobody
//
// A round is one fault, drawn at random: of all kinds each comes once before one comes again.
// Beside it endpoints and Services change ten times a second, and in some rounds a flood runs.
// After the fault, new connections must be served again, each connection that was open must have
// another answer, and two bodies must arrive whole.
//
// The first half is one process, so that what grows in a process has time to. In the second half
// processes die, hand over and take over, so what each leaves to the next may grow.
package soak
