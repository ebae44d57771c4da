// Package l2fwd is the least that a forwarder over AF_XDP can do, on the rings that the gateway
// uses (fastpath/xsk): receive a batch, write two MAC addresses, transmit, take sent frames back,
// give empty ones. All that a gateway does beyond that must show as a difference to it, so it has
// the gateway's shape and settings: one worker per queue, one UMEM per worker for all its sockets,
// rings, frames, budget and sleep as config has them by default.
//
//	       in queue w            worker w            out queue w
//	──▶ kernel: XDP redirect ──▶ Receive, MACs, Transmit ──▶ kernel ──▶
//	◀──                      ◀── the other way, in the same step   ◀──
//
// It forwards IPv4 and IPv6 and nothing else: what is neither (ARP) passes to the kernel.
// It knows no routes: what comes in on one side leaves on the other, also what is
// addressed to the node itself. It is for networks made to measure.
package l2fwd
