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
// An endpoint with a check in its objects is checked each interval, plus or minus a random tenth,
// so that checks of many endpoints, and of several gateways, do not coincide. It starts as up, as
// it is ready in Kubernetes. Fall failures in a row make it down, Rise successes in a row make it
// up. While such a row has begun, the next check follows after half an interval, or at once if the
// timeout took longer.
//
// # Passive checks
//
// For each backend, workers count the TCP flows that they open towards it, and its first answers: a
// SYN-ACK, or an RST. Forged SYNs count like others. A live endpoint also answers forged SYNs, and
// an answer to any SYN shows that it is alive. So a share of unanswered SYNs is not suspicious; it
// is suspicious if several SYNs were sent in a period and none was answered.
//
// Suspicion is no proof. An attacker can send SYNs that no endpoint answers: with a bad checksum,
// with a TTL that ends behind the gateway, or from a source that the endpoint answers by another
// way. An overloaded endpoint drops SYNs as well. So the gateway checks a suspected endpoint by a
// connection of its own, which only the endpoint can answer, and only failures of that connection
// make it down. An answer to any client meanwhile ends the suspicion. Forged SYNs can cause at most
// one check of an endpoint in holdOff.
//
// An endpoint that is down by passive checks gets no flows that could show that it answers again:
// it is checked by connections until it accepts them.
package endpointhealth
