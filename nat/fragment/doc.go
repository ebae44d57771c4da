// Package fragment remembers, for a short while, which ports a fragmented datagram
// has. Only its first fragment carries them; the later ones say what datagram they
// belong to (source, destination, protocol, identification) and nothing else, and
// another worker may receive them.
//
//	first fragment ── Record ──►  key → ports, new id, bytes that have come
//	later fragment ── Later ───►  the same, or Unknown: the caller holds it and asks again
//
// Senders use an identification again, and behind one address many do: 1,000 datagrams a second
// from clients that count for themselves use one of 65 again within a second. So a context ends
// when all bytes of its datagram have come (coverage). Then the next first fragment begins a new
// datagram, whatever its ports, and later fragments wait for it. What still fits into the complete
// datagram in the next milliseconds is a duplicate.
//
// The new id is the datagram's identification from here on, of 16 bits over IPv4 and 32 over IPv6.
// It replaces the sender's always. Behind SNAT all clients share one source address, on the way to
// a client all backends share the VIP, and where a client's address is kept, its datagrams to two
// VIPs may go to one backend: identifications that were unique between two addresses (RFC 6864
// section 5.3.1, RFC 8200 section 4.5) would not be between the new ones.
//
// As long as a datagram is incomplete, a first fragment with other ports makes it ambiguous: a
// later fragment may belong to either. Nothing more of it passes, as of a datagram whose fragments
// overlap (RFC 5722). After a second without a fragment it is given up for the new one.
//
// A table is a fixed array of buckets, two pairs of cache lines each, in memory that
// the caller supplies. It never grows: a full bucket gives up a context that has ended. If none
// has, the source network that has most contexts gives up its oldest one, so that one network's
// garbage takes no other's place; if each has one, the oldest goes.
//
//	┌─────────┬────────────────────────────────────────────────────────┬─ ··· ─┐
//	│ version │ key, ports|id, seen|source|flag, coverage in 3 words   │ × 5   │   32 words
//	└─────────┴────────────────────────────────────────────────────────┴─ ··· ─┘
//
// A writer makes the version odd by compare-and-swap, writes, and makes it even
// again. A reader takes what it read only if the version was even and the same
// before and after. Nobody waits for anybody: both try a bounded number of times,
// then report Full, as if the table were that much smaller, or Busy.
package fragment
