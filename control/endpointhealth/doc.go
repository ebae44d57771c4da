// Package endpointhealth decides which endpoints answer, as seen from this gateway.
//
//	compiler.CheckedPort ──▶ SetPorts ─┐           ┌─▶ Due ──▶ checks to start
//	counters of workers  ──▶ Sample ───┤  Tracker  │
//	results of checks    ──▶ Done ─────┘           └─▶ Changes ──▶ compiler.SetHealth
//
// A Tracker is a state machine without goroutine, clock, random source or socket: time and random
// numbers are arguments. The daemon drives it, and package control/probe makes the checks. One
// goroutine uses it.
//
// # Active checks
//
// An endpoint that objects have a check for is checked each interval, give or take a tenth at
// random, so that checks of many endpoints, and of several gateways, do not come together. It is up
// at first, as Kubernetes says that it is ready. Fall failures in a row make it down, Rise
// successes up. While a count has begun, the next check is not an interval away but half of one, or
// follows at once where the timeout took longer.
//
// # Passive checks
//
// Workers count, for each backend, the flows of TCP that they open towards it, and what its first
// answer is: a SYN-ACK, or an RST. Forged SYNs count as others do. A live endpoint answers them,
// and an answer to anybody's SYN shows that it is alive. So what is suspicious is not a share of
// SYNs that nobody answers, but that none is answered in the time in which several were sent.
//
// Suspicion is no proof. Who wants it can send SYNs that no endpoint answers: with a bad checksum,
// a TTL that ends behind the gateway, a source that the endpoint answers to by another way. An
// endpoint that overflows drops SYNs as well. So a suspected endpoint is checked by a connection of
// the gateway's own, which nobody but the endpoint can answer, and only failures of that make it
// down. An answer to any client meanwhile ends the suspicion. What SYNs of others can cause is one
// check of an endpoint in holdOff.
//
// An endpoint that is down by passive checks gets no flows that could show that it answers again:
// it is checked by connections until it accepts them.
package endpointhealth
