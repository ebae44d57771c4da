// Package group has the state machines by which the gateways of a group copy flows to each other.
// docs/adr/0037 has their rules, and package model explores them.
//
// A gateway owns source addresses: only its own flows get their ports. It numbers its flow records;
// such a number is a slot. Its Ledger records which slots were sent to each member, and which ports
// of ended flows are held because a member may have their record. A member keeps the records that
// it receives in Copies, one for each owner:
//
//	flow table ── Begin, Changed, End ──► Ledger ── Message ──► Copies ── Put, Remove ──► flow table
//	          ◄── Held, Verdict ───────         ◄── Applied ──
//
// A Ledger sends state, not events: it reads a record when it sends it, so several changes of a
// slot are one message. A stream delivers messages in order and without loss, or ends; on a new
// stream the owner sends all records again.
//
// Package wire encodes the messages, package session has the two ends of a stream, and package
// exchange runs all streams.
//
// No function of the package waits or reads a clock, and no type is safe for concurrent use: one
// goroutine owns a Ledger, and passes times as arguments (exchange.Run).
package group
