// Package bgp announces VIPs by BGP, with an embedded GoBGP.
//
//	World ── table (pure) ──▶ peers, routes, the attributes of each route for each peer
//	                            │
//	                          Speaker ── sessions, policies, paths ──▶ GoBGP
//
// # Attributes per peer
//
// GoBGP has one table for all peers, and one path per prefix in it. But peers may need different
// communities, local preferences and next hops, or no route at all. So each path has an internal
// community 0:N (reserved by RFC 1997, never sent), where N is the number of a variant. A variant
// is a set of attributes per peer. It has an export policy with one statement per peer and family,
// which replaces the community by the peer's attributes. Routes that match no statement are
// rejected.
//
// A variant never changes. For new attributes there is a new variant: first its policy is added,
// then its paths, and then the old policy is removed. So no path is sent by an incomplete policy,
// and a change of one advertisement sends the affected paths once.
//
// # No routes are accepted
//
// All routes of peers are rejected, and the speaker listens on no port: it always connects. GoBGP
// keeps rejected routes (Adj-RIB-In of RFC 4271, section 1.1), which cannot be turned off, so their
// number is limited (maxPrefixes).
//
// # BFD
//
// GoBGP's BFD is not used: it accepts packets with any TTL, and it ends the BGP session when a BFD
// session expires that was never up. Package bfd has the BFD sessions; each exists while GoBGP has
// the peer.
package bgp
