// Package l2fwd is the smallest forwarder over AF_XDP, on the rings that the gateway uses
// (fastpath/xsk): it receives a batch, writes two MAC addresses, transmits, reclaims sent frames,
// and refills the ring with empty ones. The cost of everything else in a gateway is the difference
// to it, so it has the gateway's structure and settings: one worker per queue, one UMEM per worker
// for all its sockets, rings, frames, budget and sleep with the defaults of package config.
//
//	       in queue w            worker w            out queue w
//	──▶ kernel: XDP redirect ──▶ Receive, MACs, Transmit ──▶ kernel ──▶
//	◀──                      ◀── the other way, in the same step   ◀──
//
// It forwards only IPv4 and IPv6; other packets (ARP) pass to the kernel. It has no routes: packets
// that arrive on one side leave on the other, including packets addressed to the node itself. It is
// for networks built for measurements.
package l2fwd
