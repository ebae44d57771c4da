// Package bfd implements BFD in asynchronous mode (RFC 5880) with routers on the same link (RFC
// 5881).
//
//	UDP 3784 ── TTL 255? ──▶ parse ──▶ session of the source address ──▶ session.packet (pure)
//	                                                                       │
//	                     Up to Down: Config.Down ◀── session.expire ◀── the clock
//
// A session is a state machine without sockets and without a clock: packets and the time are
// arguments. An Endpoint has the sockets, one goroutine per socket that reads, and one that sends
// and expires sessions.
//
// # What a forged packet can do
//
// A packet whose TTL or hop limit is not 255 has passed a router, and a filter in the kernel drops
// it (RFC 5881, section 5; RFC 5082). A host on the link can send a packet with TTL 255 and the
// router's address. Once the session is up, such a packet must have the session's discriminator, 32
// random bits, to be accepted, and the router's discriminator to end the session. Before that it
// can take the session to Init, which has no effect: Down is called only for a session that was up.
// The intervals in a packet are bounded (maxInterval, maxDetection) and are dropped when the
// detection time has passed.
package bfd
