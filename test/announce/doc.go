// Package announce tests the announcer against independent routers, BIRD 2 and FRR of Debian, each
// in a namespace, with the real gateway and its packet process. Clients reach VIPs only by the
// routers' routes.
//
//	router, client ── front bridge ── gateway ── back bridge ── backend
//	BIRD or FRR                       sluice run, sluice-announcer
//
// At layer 2 there is no router: several gateways with their announcers, a client and a backend are
// on one bridge, and the client's kernel resolves VIPs by ARP and neighbour discovery.
//
//	client ──┬── backend
//	gateway-0 ── gateway-1 ── gateway-2      sluice run, sluice-announcer
//
// SLUICE_ANNOUNCE=full (make -C test announce) runs all tests, repeats each failure ten times and
// prints the times.
package announce
