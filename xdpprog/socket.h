// SPDX-License-Identifier: Apache-2.0
/* The node's own sockets, in the network namespace of the device.
 */
#pragma once

#include "frame.h"

/* Whether a socket of the node has this connection, or listens for it. For an ICMP error, t has the
 * quoted connection. There is no lookup for SCTP sockets. */
INLINE bool has_socket(struct xdp_md *ctx, struct tuple *t)
{
	struct bpf_sock_tuple q = {};
	__u32 size = sizeof(q.ipv4);
	if (t->v6) {
		size = sizeof(q.ipv6);
		__builtin_memcpy(q.ipv6.saddr, t->src.addr, 16);
		__builtin_memcpy(q.ipv6.daddr, t->dst.addr, 16);
		q.ipv6.sport = t->src.port;
		q.ipv6.dport = t->dst.port;
	} else {
		q.ipv4.saddr = t->src.addr[3];
		q.ipv4.daddr = t->dst.addr[3];
		q.ipv4.sport = t->src.port;
		q.ipv4.dport = t->dst.port;
	}
	struct bpf_sock *sk = 0;
	if (t->dst.proto == PROTO_TCP)
		sk = skc_lookup_tcp(ctx, &q, size, CURRENT_NETNS, 0);
	else if (t->dst.proto == PROTO_UDP)
		sk = sk_lookup_udp(ctx, &q, size, CURRENT_NETNS, 0);
	if (sk)
		sk_release(sk);
	return sk;
}
