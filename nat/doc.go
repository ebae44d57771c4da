// Package nat rewrites packets in place, as package header has parsed them:
// addresses, ports, identifiers, TTL, and every checksum that covers them.
//
// The rule of translation: a packet leaves with the reverse of the other direction's tuple. For a
// flow with a client C, a frontend V, the gateway's source address S and a backend B:
//
//	client side:   C → V  arrives,  S → B  leaves    Delta(C→V, S→B)
//	reply side:    B → S  arrives,  V → C  leaves    the same Delta, reversed
//
// An ICMP error quotes a packet that left the gateway. Translated back, the quote is the packet
// that its sender sent, and the sender's kernel finds the socket that the error concerns:
//
//	IP  router → S                    IP  V → C
//	ICMP                   becomes    ICMP
//	  IP  S → B | 8 bytes               IP  C → V | 8 bytes
//
// Checksums are updated, never recomputed (packages checksum, and crc32c for SCTP). A wrong
// checksum stays wrong by the same difference, so the receiver still detects a sender's fault. A
// datagram without a checksum (UDP over IPv4, RFC 768) gets none.
//
// The functions trust their Packet: it must come from header.Parse or header.ParseInner on the same
// frame. Only NewRateLimits and NewFairRateLimit allocate.
package nat
