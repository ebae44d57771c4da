// Package pulse is the protocol by which a gateway reports to the announcer (package announce)
// every 100 ms whether it forwards, and which VIPs.
//
//	gateway ── Server ── pulse.sock ── Follow ── announcer
//	  State, when it changed                      Sight: a State, or why there is none
//	  an empty line otherwise
//
// A reader can ask for the changed VIPs only, instead of all VIPs with each change.
//
// The socket is separate from the status socket: its readers can change nothing, and its format
// does not depend on the operator's commands.
//
// Neither side can block the other. The gateway drops a reader that takes no bytes for a second.
// The reader knows at once that the gateway has died, because the kernel closes the connection. If
// no line arrives for Silence, the gateway counts as hung, unless the reader itself was not
// scheduled. When a connection ends, the reader connects again before it counts the gateway as
// lost: the next process may have got the socket (ADR 25).
//
// The announcer does not read the pinned heartbeat that the kernel program checks (ADR 3): it is
// written once a second, and reading it needs the right to use BPF. Both have the same information
// about workers: a State lists stalled ones among its failures.
package pulse
