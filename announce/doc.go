// Package announce decides which VIPs this node announces, and has speakers do so. It is a process
// of its own on each gateway (cmd/sluice-announcer), so that its sessions outlive the packet
// process.
//
//	gateway ── pulse ──▶ Watch ── Verdict ─┐
//	API server or file ──▶ objects ────────┼─▶ Judge ── Standing of each VIP ─▶ Speaker ── routes
//	                     Node, Services ───┘                                    bgp: pure Plan, then gobgp
//
// # What is announced
//
// A VIP is announced while packets that are sent here would be forwarded:
//
//   - the gateway's process says so: it serves, its workers move, it reaches backends and clients;
//   - it serves the VIP: that is in its table, and so in no API server's object alone;
//   - one of the VIP's Services is of policy Cluster, or has an endpoint on this node;
//   - a pool has the address: others' addresses are not announced, whatever a status says;
//   - the node is no exclusion: label, deletion.
//
// A process that ended without having said that nobody follows is waited for (Watch): its flows are
// kept, and the next process forwards within a second. Routes that move meanwhile would break what
// the restart does not.
//
// # Pure and not
//
// Watch, Judge and each speaker's plan are functions of what is passed, with the time as an
// argument. Loop has the clock, and everything that can wait.
package announce
