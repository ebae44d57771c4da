// Package announce decides which VIPs this node announces, and makes speakers announce them. It is
// a separate process on each gateway (cmd/sluice-announcer), so that its sessions outlive the
// packet process.
//
//	gateway ── pulse ──▶ Watch ── Verdict ─┐
//	API server or file ──▶ objects ────────┼─▶ Decide ── VIPVerdict of each VIP ─▶ Speaker ── routes
//	                     Node, Services ───┘                                    bgp: pure Plan, then gobgp
//
// # Which VIPs are announced
//
// A VIP is announced while this node would forward its packets:
//
//   - the gateway's process reports that it serves, its workers move, and it reaches backends and
//     clients;
//   - the VIP is in the gateway's table; an object in the API server is not enough;
//   - one of the VIP's Services has policy Cluster, or an endpoint on this node;
//   - a pool contains the address: no other address is announced, even if a status lists it;
//   - the node is neither excluded (label) nor deleted.
//
// If a gateway's process ends and may be restarted, its routes stay for a while (Watch): its flows
// are kept, and the next process forwards within a second. Moving the routes would break the
// connections that the restart does not.
//
// # Pure and not
//
// Watch, Decide and each speaker's plan are functions of their arguments, including the time. Loop
// has the clock and all code that can wait.
package announce
