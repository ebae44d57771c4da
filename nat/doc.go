// Package nat rewrites packets in place, as package header has parsed them:
// addresses, ports, identifiers, TTL, and every checksum that covers them.
//
// One sentence holds the translation: a packet leaves with the reverse of the
// other direction's tuple. For a flow with a client C, a frontend V, our source
// address S and a backend B:
//
//	client side:   C → V  arrives,  S → B  leaves    Delta(C→V, S→B)
//	reply side:    B → S  arrives,  V → C  leaves    the same Delta, reversed
//
// and an ICMP error carries, inside, a packet that left. Translated back, it is the
// packet that its sender sent, and the sender's kernel finds the socket it is about:
//
//	IP  router → S                    IP  V → C
//	ICMP                   becomes    ICMP
//	  IP  S → B | 8 bytes               IP  C → V | 8 bytes
//
// Checksums are updated, never computed anew (packages checksum, and crc32c for SCTP): one
// that was wrong stays wrong by the same difference, so no fault of a sender is hidden from the
// receiver. A checksum that is not there (UDP over IPv4, RFC 768) stays away.
//
// The functions trust their Packet: it must come from header.Parse or
// header.ParseInner on the same frame. Nothing here allocates but the checks at start.
package nat
