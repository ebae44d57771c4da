// Package group has the state machines by which the gateways of a group copy flows to each other.
// docs/adr/0037 has their rules, and package model explores them.
//
// A gateway owns source addresses, and alone takes ports of them. It numbers its flow records: a
// slot is such a number. Its Ledger says which slots each member was told, and which ports of ended
// flows are held because a member may have their record. A member keeps the records that it was
// told in Copies, one for each owner:
//
//	flow table ── Begin, Changed, End ──► Ledger ── Message ──► Copies ── Put, Remove ──► flow table
//	          ◄── Held, Verdict ───────         ◄── Applied ──
//
// A Ledger sends state, not events: it reads a record when it sends it, so several changes of a
// slot are one message. A stream that has lost nothing delivers messages in order; on a new stream
// the member gets everything anew.
//
// Package wire has the messages as bytes, package session the two ends of a stream, and package
// exchange the goroutines of all streams.
//
// Nothing here waits, reads a clock, or is safe for concurrent use: one goroutine owns a Ledger,
// and gives times as arguments (exchange.Run).
package group
