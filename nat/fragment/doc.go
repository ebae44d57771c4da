// Package fragment remembers, for a short while, which ports a fragmented datagram
// has. Only its first fragment carries them; the later ones say what datagram they
// belong to (source, destination, protocol, identification) and nothing else, and
// another worker may receive them.
//
//	first fragment ── Record ──►  key → ports, new id, age
//	later fragment ── Lookup ──►  the same, or Unknown: the caller holds it and asks again
//
// The new id is the datagram's identification behind SNAT, where all clients share
// one source address and must not share identifications (RFC 6864 section 5.3.1).
//
// A second first fragment with other ports makes the datagram ambiguous: a check of the
// one is void for the other. Nothing more of it passes (RFC 5722).
//
// A table is a fixed array of buckets, one pair of cache lines each, in memory that
// the caller supplies. It never grows: a full bucket gives up its oldest context.
//
//	┌─────────┬───────────────────────────┬─ ··· ─┐
//	│ version │ key, ports|id|flags, born │ × 5   │   16 words
//	└─────────┴───────────────────────────┴─ ··· ─┘
//
// A writer makes the version odd by compare-and-swap, writes, and makes it even
// again. A reader takes what it read only if the version was even and the same
// before and after. Nobody waits for anybody: both try a bounded number of times,
// then report Full or Unknown, as if the table were that much smaller.
package fragment
