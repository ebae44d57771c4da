// Package stateless sends packets that know when they were sent, and judges what
// arrives: the laboratory's pktgen. Between sender and receiver is the system under test.
//
//	       Tx.Port                                            Rx.Port
//	sender ───────▶ [ a wire, a gateway, a kernel's NAT ] ───────▶ receiver
//	 rate, flows, sizes                                   loss, order, flows, latency
//
// Open opens both ends, Lab.Trial sends one Load and returns its outcome, Search finds
// the highest rate without loss (RFC 2544). The commands are `sluice-bench stateless` and
// `sluice-bench rfc2544`; both take interfaces that exist, or make a veth pair (--loopback).
//
// # Packets
//
// A flow is a number; its addresses and ports follow from it, so a million flows cost the
// sender no memory. Each round sends one packet of each flow, and each round in another
// order, so that nobody downstream finds its entries in the order in which it made them.
// Every packet carries a tag: run, flow, sequence number, time (tag.go). The receiver looks for
// it where a packet of this traffic has it, which translation does not change, and leaves all
// else to the kernel, so that ARP and neighbour discovery go on.
//
// Frame sizes count the frame check sequence, as RFC 2544 does: 64 is 60 bytes in memory. A
// size too small for headers and tag is raised: IPv4 UDP fits 64, IPv4 TCP needs 76, IPv6 UDP 84,
// IPv6 TCP 96. TCP packets are SYNs with the tag as data; they measure the cost of a packet that
// opens a connection, not of connections (package stateful makes connections). Checksums are always
// right; a fragment's covers the whole datagram.
//
// # The sender
//
// It writes frames in a UMEM and sends them over AF_XDP sockets, a thread per queue. Only
// what differs between packets is written, and checksums are the sum of a constant and
// that. On veth the kernel makes a socket buffer of each packet and runs the receiving end's
// NAPI and XDP program in the sender's system call.
//
// # Two receivers
//
// Count is an XDP program that counts and drops, and marks flows in a bitmap: the cheapest
// way, for highest rates. Full takes packets over AF_XDP and checks each: IP and transport checksum
// and length, whether it came before, whether a later one of its flow did, whether all packets of
// a flow had one destination (who received them) and one source (the SNAT address and port). The
// program stamps packets as they arrive, so that the measured latency does not include the
// receiver's wait for a CPU. When Full is too slow itself, Received.Starved is set.
//
// # What figures mean
//
// Latency is from the time stamp, which all packets of a burst share, to the run of the program.
// It includes the way through the sender's ring; compare it with a wire's (--loopback) at the same
// rate. Bursts hold the packets due in 50 us, so at 500,000 packets a second some 25, and each
// packet waits for the packets before it, as it would behind a real sender. Tx.Spin keeps the
// schedule exactly and costs a whole CPU; without it threads sleep, and their CPU time grows with
// the packets that they send.
//
// On veth everything shares the CPUs of one machine: sending, forwarding and receiving. A
// rate is then what one machine can do of all three, and says little about a gateway with NICs.
// Sent.CPU is the time of the sending threads, and on veth contains the kernel's work at the other
// end as far as it runs in their system calls.
//
// # Care
//
// Every trial is bounded in time, or in packets. Nothing is sent in the machine's own network
// namespace or on an interface with a default route, unless Tx.OwnNetwork
// (--i-own-this-network) permits it. Nothing is left behind: sockets, programs and maps
// end with the Lab, namespaces of --loopback have no names.
package stateless
