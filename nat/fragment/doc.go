// Package fragment stores the ports of fragmented datagrams for a short time. Only the first
// fragment carries the ports. The later ones only identify their datagram (source, destination,
// protocol, identification), and another worker may receive them.
//
//	first fragment ── Record ──►  key → ports, new id, bytes received
//	later fragment ── Later ───►  the same, or Unknown: the caller holds it and asks again
//
// Senders reuse identifications, and many senders may share one address: of 1,000 datagrams a
// second from clients with independent counters, one in 65 has an identification that was used
// within the last second. So a context ends when all bytes of its datagram have arrived (coverage).
// Then the next first fragment begins a new datagram, with any ports, and later fragments wait for
// it. A fragment that fits into the complete datagram within the next milliseconds is a duplicate.
//
// The new id is the datagram's identification after the gateway, of 16 bits over IPv4 and 32 over
// IPv6. It always replaces the sender's. Behind SNAT all clients share one source address, on the
// way to a client all backends share the VIP, and if a client's address is kept, its datagrams to
// two VIPs may go to one backend. So identifications that were unique between two addresses (RFC
// 6864 section 5.3.1, RFC 8200 section 4.5) need not be unique between the new addresses.
//
// While a datagram is incomplete, a first fragment with other ports makes it ambiguous: a later
// fragment may belong to either. No more fragments of it are forwarded, as for a datagram whose
// fragments overlap (RFC 5722). After a second without a fragment the new datagram replaces it.
//
// A table is a fixed array of buckets, two pairs of cache lines each, in memory that the caller
// supplies. It never grows: a full bucket evicts a context that has ended. If none has ended, it
// evicts the oldest context of the source network that has most contexts, so that a flood from one
// network does not evict the contexts of others. If each network has one context, it evicts the
// oldest.
//
//	┌─────────┬────────────────────────────────────────────────────────┬─ ··· ─┐
//	│ version │ key, ports|id, seen|source|flag, coverage in 3 words   │ × 5   │   32 words
//	└─────────┴────────────────────────────────────────────────────────┴─ ··· ─┘
//
// A writer makes the version odd by compare-and-swap, writes, and makes it even again. A reader
// uses the values it read only if the version was even and the same before and after. No thread
// waits for another: readers and writers try a bounded number of times, and then return Busy, or
// Full as if the table were smaller.
package fragment
