// Package bfd is BFD in asynchronous mode (RFC 5880) with routers of one link (RFC 5881).
//
//	UDP 3784 ── TTL 255? ──▶ parse ──▶ session of the source address ──▶ session.packet (pure)
//	                                                                       │
//	                     Up to Down: Config.Down ◀── session.expire ◀── the clock
//
// A session is a state machine without sockets and clock: what arrives and the time are arguments.
// An Endpoint has the sockets, one goroutine that reads each, and one that sends and expires.
//
// # What a forged packet can do
//
// A packet whose TTL or hop limit is not 255 has passed a router, and is dropped by a filter in the
// kernel (RFC 5881, section 5; RFC 5082). A host of the link can send one with 255 and the router's
// address. It must know the session's discriminator, 32 random bits, to be taken for the router
// once the session is up, and the router's to take it down. Before that it can take the session to
// Init, which ends nothing: Down is called for a session that was up, and for no other. What it
// says of times is bounded (maxInterval, maxDetection) and forgotten when the detection time has
// passed.
package bfd
