//go:build ignore

// SPDX-License-Identifier: Apache-2.0
/* Selects the packets for user space. All other packets, and all doubtful ones, pass to the kernel.
 *
 *   steer      XDP on a NIC: service packets go to the AF_XDP socket of their queue
 *   host_link  XDP on the user-space end of the host link: all packets go to the socket
 *   egress     TCX egress on a NIC: replies of kept-client backends that the
 *              kernel sends (endpoints on this node, overlays) go to the host link
 *
 * All interfaces share the maps, except xsks, queues, macs and vlans. User space changes all maps
 * in place.
 */
#include "frame.h"
#include "socket.h"

/* The bytes that egress makes readable: VLAN tags, two IP headers, ICMP, ports. */
enum { HEADER_BYTES = 160 };

INLINE void *first(void *map)
{
	__u32 zero = 0;
	return map_lookup(map, &zero);
}

INLINE bool heartbeat_young(struct config *s)
{
	__u64 *beat = first(&heartbeat);
	return s && beat && *beat && ktime_get_boot_ns() - *beat < s->pass_after_ns;
}

/* Whether the daemon serves a receive queue. */
INLINE bool queue_served(__u32 queue)
{
	__u32 *n = first(&queues);
	return n && (*n == 0 || queue < *n);
}

/* Whether nodeports or replies has the destination's port. */
INLINE bool port_open(void *map, struct tuple *t)
{
	__u16 port = ntohs(t->dst.port);
	__u32 proto = t->dst.proto == PROTO_TCP ? 0 : t->dst.proto == PROTO_UDP ? 1 : 2;
	__u32 word = (t->v6 * 3 + proto) * 1024 + port / 64;
	__u64 *bits = map_lookup(map, &word);
	return bits && *bits >> port % 64 & 1;
}

/* The flags of an address, or 0 if it has none. */
INLINE __u32 flags_of(__be32 *addr)
{
	enum addr_flags *flags = map_lookup(&addrs, addr);
	return flags ? *flags : 0;
}

/* Whether shortcuts have a word of that kind for an IPv4 packet. The multiplier is for Fibonacci
 * hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4). */
INLINE bool short_cut(struct tuple *t, enum shortcut_kind kind)
{
	__u64 word = (__u64)kind << 56 | t->dst.addr[3];
	if (kind == SHORT_FRONTEND)
		word |= (__u64)t->dst.proto << 48 | (__u64)t->dst.port << 32;
	__u32 at = word * 0x9e3779b97f4a7c15 >> (64 - SHORTCUT_BITS);
	struct shortcut *s = map_lookup(&shortcuts, &at);
	for (int i = 0; s && i < SHORTCUT_WORDS; i++)
		if (s->word[i] == word)
			return 1;
	return 0;
}

/* Whether an address is the gateway's and not the node's. The kernel would forward a packet to it
 * by its route to the address, mostly back to where the packet came from. */
INLINE bool routed(__u32 flags)
{
	return flags & (VIP | SNAT) && !(flags & (NODE | LOCAL));
}

/* Whether the kernel must not forward packets to an address that no rule takes. Only a VIP may be
 * left to another program. */
INLINE bool withheld(struct config *s, __u32 flags)
{
	return routed(flags) && (s->unserved || !(flags & VIP));
}

/* Whether the destination is a frontend; at an address of the node, *shared becomes true. */
INLINE bool is_frontend(struct tuple *t, bool *shared)
{
	__u8 *value = map_lookup(&frontends, &t->dst);
	*shared |= value && *value == AT_NODE;
	return value;
}

/* Why a packet is for the gateway: it is a client's, or perhaps not (a reply to an SNAT address, or
 * a fragment that may be one, or the node's). */
enum sender { NOT_FOR_US, PERHAPS_A_CLIENT, CLIENT };

/* The sender of a fragment for an address that is not only a VIP. Only the first fragment shows it:
 * without that one, workers drop the others. */
INLINE enum sender sender_of_fragment(struct tuple *t, struct config *s, __u32 dst, bool node_port)
{
	bool local = (__u16)(ntohs(t->dst.port) - s->local_first) < s->local_count;
	bool none;
	if (!t->ports)
		return PERHAPS_A_CLIENT;
	if (dst & NODE && node_port && !local)
		return CLIENT;
	return dst & HAS_FRONTEND && !(dst & (NODE | LOCAL)) && is_frontend(t, &none) ? CLIENT : PERHAPS_A_CLIENT;
}

/* Whether a packet is for the gateway: for a frontend, a node port, or a reply to an SNAT address.
 * If not, *dst becomes the flags of the destination's address. *shared becomes true if the packet
 * may also be for a socket of the node.
 *
 * A lookup in a hash map costs more than everything else together, so the port selects the lookup
 * that most probably succeeds: replies and node ports are rarely frontends. While a frontend is
 * being opened, between the updates of its own entry and its address's, both results are
 * correct. */
INLINE enum sender to_us(struct tuple *t, struct config *s, __u32 *dst, bool *shared)
{
	bool reply = (__u16)(ntohs(t->dst.port) - s->snat_first) < s->snat_count ||
		     (s->kept_replies && port_open(&replies, t));
	/* An SNAT address that the node does not have receives replies at all ports except system
	 * ports. */
	bool own_reply = ntohs(t->dst.port) >= OWN_SNAT_FIRST;
	bool node_port = port_open(&nodeports, t);
	bool ports = !t->echo && !t->fragment;
	*shared = ports && node_port && (__u16)(ntohs(t->dst.port) - s->local_first) < s->local_count;
	if (ports && !t->v6) {
		if (short_cut(t, reply ? SHORT_SNAT : node_port ? SHORT_NODE : SHORT_FRONTEND))
			return reply ? PERHAPS_A_CLIENT : CLIENT;
		if (own_reply && short_cut(t, SHORT_OWN_SNAT)) {
			*shared = 0;
			return PERHAPS_A_CLIENT;
		}
	}
	bool asked = !reply && !node_port && ports;
	if (asked && is_frontend(t, shared))
		return CLIENT;
	*dst = flags_of(t->dst.addr);
	if (!(*dst & (NODE | LOCAL)))
		*shared = 0; /* a listener on all addresses does not have addresses that the node does not have */
	if (!(*dst & ~(HAS_KEEP | LOCAL)))
		return NOT_FOR_US;
	if (t->fragment && *dst & (NODE | LOCAL | SNAT)) {
		/* Any protocol may follow an extension header: at the node's addresses it is for the node. */
		if (*dst & NODE && !is_transport(t))
			return NOT_FOR_US;
		return sender_of_fragment(t, s, *dst, node_port);
	}
	bool to_snat = ports && *dst & SNAT && (reply || (own_reply && !(*dst & (NODE | LOCAL))));
	if (to_snat)
		return PERHAPS_A_CLIENT;
	if (withheld(s, *dst) || t->fragment)
		return CLIENT;
	if (t->echo)
		return *dst & VIP ? CLIENT : NOT_FOR_US;
	if (*dst & NODE && node_port)
		return CLIENT;
	return *dst & HAS_FRONTEND && !asked && is_frontend(t, shared) ? CLIENT : NOT_FOR_US;
}

/* Whether the kernel must not forward a packet, because its destination is an address of the
 * gateway and not of the node. This applies to any protocol, also if the ports cannot be read. Not
 * inlined, for the same reason as advance. */
__attribute__((noinline)) int by_address(struct endpoint *dst)
{
	struct config *s = first(&settings);
	return dst && s && withheld(s, flags_of(dst->addr));
}

/* A fragment has too few fields to distinguish the node's own traffic from a service's. */
INLINE bool maybe_the_nodes(struct tuple *t)
{
	return t->fragment && flags_of(t->dst.addr) & (NODE | LOCAL);
}

/* Whether a packet comes from a backend whose service keeps the client's address. It is for the
 * gateway if it goes to a client of the service. The node itself is not such a client: packets that
 * the same endpoint (perhaps the API server) sends to an address of the node are the node's own
 * traffic, which a dead daemon must not block. */
INLINE bool kept(struct tuple *t, __u32 except)
{
	__u32 src = flags_of(t->src.addr);
	return src & HAS_KEEP && !(src & except) && (t->fragment || map_lookup(&keep_sources, &t->src));
}

/* Whether a client is denied. The daemon removes expired entries; the program also checks the time,
 * in case no daemon runs. Not inlined, for the same reason as advance. */
__attribute__((noinline)) int is_denied(struct endpoint *client)
{
	if (!client)
		return 0;
	__be32 *a = client->addr;
	struct prefix one = {.bits = 128, .addr = {a[0], a[1], a[2], a[3]}};
	bool v4 = !a[0] && !a[1] && a[2] == ntohl(0xffff);
	__u32 slice = v4 ? ntohs((__u16)a[3]) : ntohl(a[0]) * 0x9e3779b1 >> 16;
	__u32 word = (v4 ? 0 : 1024) + slice / 64;
	__u64 *hint = map_lookup(&deny_hints, &word);
	if (!hint || !(*hint >> slice % 64 & 1))
		return 0;
	struct denial *d = map_lookup(&denied, &one);
	if (!d || (d->until_ns && ktime_get_boot_ns() >= d->until_ns))
		return 0;
	__sync_fetch_and_add(&d->packets, 1);
	return 1;
}

/* Whether a frame is for this node: in no VLAN or in one of the node's VLANs, and to one of its
 * unicast MAC addresses (multicast frames have no tuple). A switch floods frames for other hosts,
 * and a device in promiscuous mode delivers them; the kernel drops such frames (PACKET_OTHERHOST,
 * eth_type_trans of net/ethernet/eth.c), except those that it bridges. While the addresses are not
 * known, every frame counts as this node's. */
INLINE bool for_this_node(void *data, void *end, struct tuple *t)
{
	struct mac_sets *d = first(&macs);
	__u64 *head = data;
	if (!d || (void *)(head + 1) > end)
		return 1;
	struct mac_set *known = &d->set[d->active & 1];
	__u64 n = known->n, mac = *head << 16;
	if (!n)
		return 1;
	if (t->vlans && !map_lookup(&vlans, &t->vlans))
		return 0;
	for (__u32 i = 0; i < MAX_MACS && i < n; i++)
		if (known->word[i] == mac)
			return 1;
	return 0;
}

/* Reads a frame that is not plain. Not inlined, for the same reason as advance: the verifier then
 * checks the code that follows once, and not for every path through the headers. */
__attribute__((noinline)) int read_other(struct xdp_md *ctx, struct tuple *t)
{
	return t && read_frame((void *)(long)ctx->data, (void *)(long)ctx->data_end, t);
}

SEC("xdp.frags") int steer(struct xdp_md *ctx)
{
	struct tuple t = {};
	__u32 dst = 0;
	bool shared = 0;
	struct config *s = first(&settings);
	struct counts *c = first(&counters);
	if (!s || !c)
		return XDP_PASS;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	/* A packet whose source is an address of this node does not come from a backend. But a
	 * backend's address may be a VIP, because users can set any address as an external IP. */
	enum sender sender = CLIENT;
	if (read_plain(data, end, &t) || read_other(ctx, &t)) {
		sender = to_us(&t, s, &dst, &shared);
		if (!sender && (dst & (NODE | LOCAL) || !kept(&t, NODE | SNAT))) {
			c->passed++;
			return XDP_PASS;
		}
	} else if (t.neighbour || !by_address(&t.dst)) {
		c->passed++;
		return XDP_PASS;
	}
	if (!for_this_node(data, end, &t)) {
		c->foreign_passed++;
		return XDP_PASS;
	}
	if (shared && has_socket(ctx, &t)) {
		c->passed++;
		return XDP_PASS;
	}
	if (s->deny && sender == CLIENT && is_denied(&t.src)) {
		c->denied_dropped++;
		return XDP_DROP;
	}
	if (redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS) == XDP_REDIRECT) {
		c->steered++;
		return XDP_REDIRECT;
	}
	/* There is no socket. The kernel would answer live flows with RST, which it must not do during
	 * a restart, so the packet is dropped. Exceptions are queues that never get a socket, whose
	 * packets would always be dropped, and the node's own traffic. */
	if (queue_served(ctx->rx_queue_index) && heartbeat_young(s) && !maybe_the_nodes(&t)) {
		c->missed_dropped++;
		return XDP_DROP;
	}
	c->missed_passed++;
	return XDP_PASS;
}

SEC("xdp.frags") int host_link(struct xdp_md *ctx)
{
	return redirect_map(&xsks, ctx->rx_queue_index, XDP_DROP);
}

/* Whether the kernel is about to send back a packet for an address of the gateway. That happens if
 * no worker receives the packets (the daemon is dead, or the queue never has a socket), or if a
 * worker returns them, because only live flows use the address and no Service has it. If kube-proxy
 * serves such a packet, it has already changed the destination. A packet from another device may be
 * a pod's, on its way to another gateway: it is forwarded while the daemon lives. */
INLINE bool sent_back(struct __sk_buff *skb, struct config *s, struct tuple *t)
{
	return skb->ingress_ifindex && by_address(&t->dst) &&
	       (skb->ingress_ifindex == skb->ifindex || skb->ingress_ifindex == s->host_link || t->neighbour ||
		!heartbeat_young(s));
}

SEC("tcx/egress") int egress(struct __sk_buff *skb)
{
	struct tuple t = {};
	struct config *s = first(&settings);
	struct counts *c = first(&counters);
	bool read = 0;
	if (!s || !c || (s->host_link && skb->ifindex == s->host_link))
		return TCX_NEXT;
	for (bool pulled = 0;; pulled = 1) {
		read = read_frame((void *)(long)skb->data, (void *)(long)skb->data_end, &t);
		/* Only the skb's linear part is readable. Headers beyond it are rare; making them linear
		 * costs a copy, so it is done only if the parser needs more bytes. */
		if (read || pulled || !t.cut || skb_pull_data(skb, skb->len < HEADER_BYTES ? skb->len : HEADER_BYTES))
			break;
	}
	if (sent_back(skb, s, &t)) {
		c->sent_back_dropped++;
		return TCX_DROP;
	}
	/* User space returned the packets that arrive by the host link: redirecting them again would be
	 * a loop. */
	if (!read || !s->host_link || skb->ingress_ifindex == s->host_link)
		return TCX_NEXT;
	if (!kept(&t, 0) || flags_of(t.dst.addr) & (NODE | LOCAL) || !heartbeat_young(s))
		return TCX_NEXT;
	c->egress_redirected++;
	return redirect(s->host_link, 0);
}

char _license[] SEC("license") = "Apache-2.0";
