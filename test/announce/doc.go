// Package announce tests the announcer against routers that are not ours: BIRD 2 and FRR of Debian,
// each in a namespace, with the real gateway, its real packet process, and clients that reach VIPs
// by the routers' routes alone.
//
//	router, client ── front bridge ── gateway ── back bridge ── backend
//	BIRD or FRR                       sluice run, sluice-announcer
//
// At layer 2 there is no router: several gateways, each with its announcer, a client and a backend
// are on one bridge, and the client's kernel finds VIPs by ARP and neighbour discovery.
//
//	client ──┬── backend
//	gateway-0 ── gateway-1 ── gateway-2      sluice run, sluice-announcer
//
// SLUICE_ANNOUNCE=full (make announce) has all tests, repeats each failure ten times and prints the
// times.
package announce
