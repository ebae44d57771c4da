//go:build ignore

// SPDX-License-Identifier: Apache-2.0
/* Which packets user space owns. All else, and every doubt, stays the kernel's.
 *
 *   steer      XDP on a NIC: service packets go to the AF_XDP socket of their queue
 *   host_link  XDP on the user-space end of the host link: everything does
 *   egress     TCX on a NIC, way out: replies of kept-client backends that the
 *              kernel sends (endpoints on this node, overlays) go to the host link
 *
 * The maps but xsks, queues, macs and vlans are shared by all interfaces. All change in
 * place.
 */
#include "frame.h"
#include "socket.h"

/* What egress makes readable: VLAN tags, two IP headers, ICMP, ports. */
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

/* Whether a receive queue is meant to have a socket. */
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

/* Why an address matters to us; 0: it does not. */
INLINE __u32 flags_of(__be32 *addr)
{
	enum addr_flags *flags = map_lookup(&addrs, addr);
	return flags ? *flags : 0;
}

/* Whether shortcuts have a word of that kind for an IPv4 packet. The multiplier is that of
 * Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4). */
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

/* Whether an address is the gateway's and none of the node: the kernel has no use for a packet to it,
 * and would send it on by its route to the address, which mostly is the way it came. */
INLINE bool routed(__u32 flags)
{
	return flags & (VIP | SNAT) && !(flags & (NODE | LOCAL));
}

/* Whether the destination is a frontend; at an address of the node, *shared becomes true. */
INLINE bool is_frontend(struct tuple *t, bool *shared)
{
	__u8 *value = map_lookup(&frontends, &t->dst);
	*shared |= value && *value == AT_NODE;
	return value;
}

/* To us: a frontend, a node port, a reply to an SNAT address. If not, *dst becomes the
 * flags of the destination's address. *shared: it may be for a socket of the node as well.
 *
 * A lookup in a hash map costs more than all else together, and the port says which one
 * most probably ends the search: no reply and no node port is to a frontend. While a
 * frontend opens, between its own entry and its address's, either answer is right. */
INLINE bool to_us(struct tuple *t, struct config *s, __u32 *dst, bool *shared)
{
	bool reply = (__u16)(ntohs(t->dst.port) - s->snat_first) < s->snat_count ||
		     (s->kept_replies && port_open(&replies, t));
	/* An SNAT address that the node does not have replies to all ports but the well-known ones. */
	bool own_reply = ntohs(t->dst.port) >= OWN_SNAT_FIRST;
	bool node_port = port_open(&nodeports, t);
	bool ports = !t->echo && !t->fragment;
	*shared = ports && node_port && (__u16)(ntohs(t->dst.port) - s->local_first) < s->local_count;
	if (ports && !t->v6) {
		if (short_cut(t, reply ? SHORT_SNAT : node_port ? SHORT_NODE : SHORT_FRONTEND))
			return 1;
		if (own_reply && short_cut(t, SHORT_OWN_SNAT)) {
			*shared = 0;
			return 1;
		}
	}
	bool asked = !reply && !node_port && ports;
	if (asked && is_frontend(t, shared))
		return 1;
	*dst = flags_of(t->dst.addr);
	if (!(*dst & (NODE | LOCAL)))
		*shared = 0; /* a listener on all addresses has none that the node does not have */
	if (!(*dst & ~(HAS_KEEP | LOCAL)))
		return 0;
	if (s->unserved && routed(*dst))
		return 1;
	if (t->echo)
		return *dst & VIP;
	if (t->fragment) /* behind an extension header may be anything: on the node's addresses, the node's */
		return !(*dst & NODE) || is_transport(t);
	if ((*dst & NODE && node_port) || (*dst & SNAT && (reply || (own_reply && !(*dst & (NODE | LOCAL))))))
		return 1;
	return *dst & HAS_FRONTEND && !asked && is_frontend(t, shared);
}

/* Whether a packet is for an address of the gateway that the kernel must not forward it to, whatever
 * its protocol, and also where it cannot be read to its ports. Not inlined, as advance is not. */
__attribute__((noinline)) int by_address(struct endpoint *dst)
{
	struct config *s = first(&settings);
	return dst && s && s->unserved && routed(flags_of(dst->addr));
}

/* A fragment says too little to tell the node's own traffic from a service's. */
INLINE bool maybe_the_nodes(struct tuple *t)
{
	return t->fragment && flags_of(t->dst.addr) & (NODE | LOCAL);
}

/* From a backend whose service keeps the client's address. It is ours if it goes to such
 * a client. The node itself is none: what the same endpoint, the API server perhaps, sends to
 * one of its addresses is the node's own traffic, which no dead daemon may hold up. */
INLINE bool kept(struct tuple *t, __u32 except)
{
	__u32 src = flags_of(t->src.addr);
	return src & HAS_KEEP && !(src & except) && (t->fragment || map_lookup(&keep_sources, &t->src));
}

/* Whether a frame is this node's: in none or in one of its VLANs, and for one of its unicast MAC
 * addresses (multicast is no tuple's). A switch floods frames for others, and a device in promiscuous
 * mode delivers them; the kernel drops those (PACKET_OTHERHOST, eth_type_trans of
 * net/ethernet/eth.c), but for what it bridges. As long as the addresses are not known, every
 * frame is. */
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

/* Reads a frame that is not an ordinary one. Not inlined, as advance is not: the verifier then
 * judges what follows once, and not for every way through the headers. */
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
	/* Who comes in with an address of this node as source is not our backend. A VIP may
	 * be one's: anybody may write any address as an external IP. */
	if (read_plain(data, end, &t) || read_other(ctx, &t)) {
		if (!to_us(&t, s, &dst, &shared) && (dst & (NODE | LOCAL) || !kept(&t, NODE | SNAT))) {
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
	if (redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS) == XDP_REDIRECT) {
		c->steered++;
		return XDP_REDIRECT;
	}
	/* No socket. The kernel would answer live flows with RST: it may not, while a restart
	 * is under way. A queue that is never to have one would wait for it for ever, and
	 * what is the node's own must not suffer. */
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

/* Whether the kernel is about to send back what came for an address of the gateway. That happens
 * where no worker takes packets (the daemon is dead, or the queue never has a socket), and where a
 * worker returns them, as only live flows keep the address and no Service has it. kube-proxy, which
 * may serve such a packet, has given it another destination by then. What came by another device may
 * be a pod's, on its way to another gateway: while the daemon lives it goes on. */
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
		/* Readable is the skb's linear part. Headers beyond it are rare; making them
		 * linear costs a copy, and only one that gets us further is worth it. */
		if (read || pulled || !t.cut || skb_pull_data(skb, skb->len < HEADER_BYTES ? skb->len : HEADER_BYTES))
			break;
	}
	if (sent_back(skb, s, &t)) {
		c->sent_back_dropped++;
		return TCX_DROP;
	}
	/* What came in by the host link was returned by user space: catching it again would be a loop. */
	if (!read || !s->host_link || skb->ingress_ifindex == s->host_link)
		return TCX_NEXT;
	if (!kept(&t, 0) || flags_of(t.dst.addr) & (NODE | LOCAL) || !heartbeat_young(s))
		return TCX_NEXT;
	c->egress_redirected++;
	return redirect(s->host_link, 0);
}

char _license[] SEC("license") = "Apache-2.0";
