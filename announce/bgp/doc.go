// Package bgp announces VIPs by BGP, with an embedded GoBGP.
//
//	World ── table (pure) ──▶ peers, routes, the attributes of each route for each peer
//	                            │
//	                          Speaker ── sessions, policies, paths ──▶ GoBGP
//
// # What each peer is told
//
// GoBGP has one table for all peers, and one path of a prefix in it. Peers may be told different
// communities, local preferences and next hops, or nothing. So a path has a community of our own,
// 0:N (reserved by RFC 1997, and never sent), where N names a variant: what each peer is told. For
// each variant there is an export policy with a statement for each peer and family, which replaces
// that community by what the peer is to get. What no statement is about is rejected.
//
// A variant is never changed. What changes becomes a new one: its policy first, then its paths, and
// then the old policy goes. So no path is ever sent by a policy that is half written, and a change
// of one advertisement sends the paths that it is about, once.
//
// # Nothing is learnt
//
// All routes of peers are rejected, and no port is listened on: this side connects. GoBGP keeps
// rejected routes all the same (Adj-RIB-In of RFC 4271, section 1.1), and has no setting against
// it, so their number is limited (maxPrefixes).
//
// # BFD
//
// GoBGP's BFD is not used: it takes packets with any TTL, and ends the session of BGP when one of
// BFD that was never up expires. Package bfd has the sessions, which are there while GoBGP has the
// peer.
package bgp
