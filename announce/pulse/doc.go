// Package pulse is what a gateway says of itself to who brings packets to it: a line each 100 ms
// that it forwards, and what. The announcer (announce) reads it.
//
//	gateway ── Server ── pulse.sock ── Follow ── announcer
//	  State, when it changed                      Sight: a State, or why there is none
//	  an empty line otherwise
//
// A reader that asks for it gets the VIPs that changed, and not all of them with each change.
//
// It is a socket of its own, and not a request on the status socket: who may read it can change
// nothing, and its form is not that of the operator's commands.
//
// Neither side can hang the other. The gateway drops a reader that takes no bytes for a second. The
// reader knows that the gateway has died when the kernel closes the connection, which takes no
// time, and that it stands still when nothing came for Silence, unless it was the reader that was
// not run. Where a connection ended it asks again before it counts the gateway as lost, and where
// nothing came afterwards: the next process may have been given the socket (ADR 25).
//
// The announcer does not read the pinned heartbeat that the kernel program judges (ADR 3): that one
// is written once a second, and reading it takes the right to use BPF. Both say the same of the
// workers: a State lists those that are stalled among its failures.
package pulse
