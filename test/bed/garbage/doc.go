// Package garbage makes invalid packets and checks the packets that a gateway made of them. Tests
// of a worker in memory (fastpath) and of the whole gateway (test/e2e) send them beside real flows.
//
//	Source ─ frame, class ─▶ gateway ─ frame ─▶ Judge ─▶ nil, or the fault
//
// A Class is a way to lie: lengths, header fields, chains of extension headers, fragments and so
// on. Source.Frame enumerates a class, Source.Next draws from all of them and mutates the frame
// that it drew: one to eight bytes changed, two frames spliced, length fields wrong by one or by
// more. Both depend on the seed and on the flows alone, so a run can be repeated.
//
// Judge decodes with code of its own, written after what Linux refuses (net/ipv4/ip_input.c,
// net/ipv6/ip6_input.c, net/ipv4/tcp_ipv4.c, net/ipv4/udp.c), and with gopacket. It shares none
// with the packages that it judges.
package garbage
