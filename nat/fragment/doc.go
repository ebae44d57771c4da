// Package fragment remembers, for a short while, which ports a fragmented datagram
// has. Only its first fragment carries them; the later ones say what datagram they
// belong to (source, destination, protocol, identification) and nothing else, and
// another worker may receive them.
//
//	first fragment ── Record ──►  key → ports, new id, age
//	later fragment ── Lookup ──►  the same, or Unknown: the caller holds it and asks again
//
// The new id is the datagram's identification from here on, of 16 bits over IPv4 and 32 over IPv6.
// It replaces the sender's always. Behind SNAT all clients share one source address, on the way to
// a client all backends share the VIP, and where a client's address is kept, its datagrams to two
// VIPs may go to one backend: identifications that were unique between two addresses (RFC 6864
// section 5.3.1, RFC 8200 section 4.5) would not be between the new ones.
//
// A second first fragment with other ports makes the datagram ambiguous: a check of the
// one is void for the other. Nothing more of it passes (RFC 5722).
//
// A table is a fixed array of buckets, one pair of cache lines each, in memory that
// the caller supplies. It never grows: of a full bucket the source network that has most contexts
// gives up its oldest one, so that one network's garbage takes no other's place; if each has one,
// the oldest goes.
//
//	┌─────────┬─────────────────────────────────┬─ ··· ─┐
//	│ version │ key, ports|id, born|source|flag │ × 5   │   16 words
//	└─────────┴─────────────────────────────────┴─ ··· ─┘
//
// A writer makes the version odd by compare-and-swap, writes, and makes it even
// again. A reader takes what it read only if the version was even and the same
// before and after. Nobody waits for anybody: both try a bounded number of times,
// then report Full or Unknown, as if the table were that much smaller.
package fragment
