// Package model checks the rules by which gateways copy flows to each other (docs/adr/0037). It
// explores every order of events within bounds. All of its code is in tests.
//
// A gateway owns source addresses that no node has: only its own flows get their ports. It sends a
// record of each flow to the other gateways of the group, its members, over one stream each. When
// the owner dies, members translate by their copies. Two models look for broken connections.
//
// portModel checks source ports. One owner, up to two members, one backend:
//
//	          All, Set, Clear, AllDone              reply key (source address, port)
//	owner ───────────────────────────────► member       │
//	  │  ◄───────────────────────────────    │          ▼
//	  │            acknowledgements          │       backend
//	slots, held ports, addresses           copies
//
// It looks for a copy whose client is not the client of the backend's connection at that port, and
// for a protected connection that one failure breaks. Events: flows begin and end, each message is
// sent, applied and acknowledged at any time, streams break, leases run out, processes are killed
// and keep or lose their memory.
//
// handshakeModel checks handshakes: the SYN of one client reaches several gateways, each of which
// may make a flow. It looks for an established connection whose segments reach another backend, or
// no record.
//
// The models have no time: an event that follows a timeout may happen whenever its condition holds.
// Leases are the exception, because a lease orders two clocks: the member's side ends before the
// owner's side (waitForLease).
//
// Each rule has a name (rule). A test takes out each rule and asserts that the exploration then
// finds a violation, whose shortest trace it prints: go test -v -run Rules. Without -v nothing is
// printed. With SLUICE_FAULT_RUNS=200 the tests explore larger bounds, up to 20 million states each
// in some 3 GB, and take 1,000,000 random walks.
package model
