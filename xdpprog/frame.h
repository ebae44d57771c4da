// SPDX-License-Identifier: Apache-2.0
/* Reading a frame: from bytes to the tuple that the rules check. Every read is checked against the
 * end; the rules do not apply to a frame that cannot be parsed.
 */
#pragma once

#include "maps.h"

enum {
	MAX_VLAN_TAGS = 2,
	MAX_EXTENSIONS = 8, /* IPv6 extension headers walked, each at most 2 KiB */
	MAX_OFFSET = 0x7fff, /* all ones, and more than all headers together */
};

/* One direction of a flow: the fields of a packet that the rules check. */
struct tuple {
	struct endpoint src, dst;
	bool v6, fragment;
	bool ports; /* of a fragment: it has the ports, because it is the first one */
	bool echo; /* an ICMP echo request */
	__u8 hop_limit; /* IPv6 */
	bool neighbour; /* neighbour discovery about the destination, which no router forwards */
	bool cut;  /* not parsed: the readable bytes ended too early */
	/* The frame's VLANs, the inner one in the lower half: a VLAN ID, and 1 << 12 for an 802.1ad
	 * tag. 0: in no VLAN; so are frames with only priority tags (ID 0). */
	__u32 vlans;
};

/* Whether bytes up to p are readable. */
INLINE bool within(void *p, void *end, struct tuple *t)
{
	t->cut = p > end;
	return p <= end;
}

/* Adds to an offset in the frame. Not inlined and not static, so that the verifier checks it
 * separately and knows only the mask of its result: all paths through a loop then look the same to
 * the verifier, and it follows one: 15,000 instructions, not 538,000. */
__attribute__((noinline)) __u32 advance(__u32 at, __u32 by)
{
	return at + by;
}

INLINE bool has_ports(__u8 proto)
{
	return proto == PROTO_TCP || proto == PROTO_UDP || proto == PROTO_SCTP;
}

INLINE bool is_extension(__u8 proto)
{
	return proto == PROTO_HOPOPTS || proto == PROTO_ROUTING || proto == PROTO_DSTOPTS ||
	       proto == PROTO_FRAGMENT || proto == PROTO_AH;
}

/* Skips IPv6 extension headers from offset at on. Returns the offset of the header that *next then
 * names, or of the payload of a fragment, or 0 if the chain does not end. */
INLINE __u32 skip_extensions(void *data, void *end, __u32 at, __u8 *next, struct tuple *t)
{
	for (int i = 0; i <= MAX_EXTENSIONS; i++) {
		struct extension *e = data + at;
		if (!is_extension(*next))
			return at;
		if (!within(e + 1, end, t))
			return 0;
		if (*next == PROTO_FRAGMENT) {
			t->fragment = e->fragment & ntohs(0xfff9); /* neither offset nor M: atomic, RFC 6946 */
			if (t->fragment) {
				*next = e->next; /* the packet's; its sender repeats it in all fragments, RFC 8200 section 4.5 */
				t->ports = !(e->fragment & ntohs(0xfff8));
				return advance(at, 8) & MAX_OFFSET;
			}
			at = advance(at, 8);
		} else if (*next == PROTO_AH) {
			at = advance(at, (e->len + 2) * 4); /* RFC 4302 section 2.2 */
		} else {
			at = advance(at, (e->len + 1) * 8);
		}
		at &= MAX_OFFSET;
		*next = e->next;
	}
	return 0;
}

/* Writes two words at once: the kernel reads keys in whole words, and a load of bytes that were
 * written in parts waits until all parts are in the cache. */
INLINE void put(void *to, __u32 low, __u32 high)
{
	__u64 both = (__u64)high << 32 | low;
	__builtin_memcpy(to, &both, 8);
}

INLINE void take_ipv4(struct ipv4 *ip, struct tuple *t)
{
	put(&t->src.addr[2], ntohl(0xffff), ip->src);
	put(&t->dst.addr[2], ntohl(0xffff), ip->dst);
}

INLINE void take_ipv6(struct ipv6 *ip, struct tuple *t)
{
	put(&t->src.addr[0], ip->src[0], ip->src[1]);
	put(&t->src.addr[2], ip->src[2], ip->src[3]);
	put(&t->dst.addr[0], ip->dst[0], ip->dst[1]);
	put(&t->dst.addr[2], ip->dst[2], ip->dst[3]);
}

INLINE void take_transport(struct endpoint *e, __be16 port, __u8 proto)
{
	put(&e->port, (__u32)proto << 16 | port, 0);
}

/* Reads the addresses and the protocol of the IP packet at an offset. Returns the offset of its
 * transport header, or 0 if the packet cannot be parsed. */
INLINE __u32 read_ip(void *data, void *end, __u32 at, struct tuple *t)
{
	__u8 proto;
	if (t->v6) {
		struct ipv6 *ip = data + at;
		if (!within(ip + 1, end, t) || ntohl(ip->version_class_flow) >> 28 != 6)
			return 0;
		take_ipv6(ip, t);
		t->hop_limit = ip->hop_limit;
		proto = ip->next;
		at = skip_extensions(data, end, at + sizeof(*ip), &proto, t);
	} else {
		struct ipv4 *ip = data + at;
		if (!within(ip + 1, end, t) || ip->version_ihl >> 4 != 4 || (ip->version_ihl & 15) < 5)
			return 0;
		take_ipv4(ip, t);
		t->fragment = ip->fragment & ntohs(0x3fff); /* more fragments, or an offset */
		t->ports = t->fragment && !(ip->fragment & ntohs(0x1fff));
		proto = ip->proto;
		at = advance(at, (ip->version_ihl & 15) * 4) & MAX_OFFSET;
		if (!within(data + at, end, t))
			return 0;
	}
	t->src.proto = t->dst.proto = proto;
	return at;
}

/* Whether the protocol, also of a fragment, is one that flows can have. */
INLINE bool is_transport(struct tuple *t)
{
	return has_ports(t->dst.proto) || t->dst.proto == (t->v6 ? PROTO_ICMPV6 : PROTO_ICMP);
}

INLINE bool read_ports(void *data, void *end, __u32 at, struct tuple *t)
{
	struct ports *p = data + at;
	if (t->fragment) { /* steered by address and protocol only: later fragments have no ports */
		t->ports = t->ports && has_ports(t->dst.proto) && (void *)(p + 1) <= end;
		if (t->ports)
			take_transport(&t->dst, p->dst, t->dst.proto);
		return is_transport(t) || (t->v6 && is_extension(t->dst.proto));
	}
	if (!has_ports(t->dst.proto))
		return 0;
	if (!within(p + 1, end, t))
		return 0;
	take_transport(&t->src, p->src, t->src.proto);
	take_transport(&t->dst, p->dst, t->dst.proto);
	return 1;
}

/* Reads the quote of an ICMP error. t becomes the reverse of the quoted tuple: the direction in
 * which the error travels, so that the same rules apply to it. */
INLINE bool read_quote(void *data, void *end, __u32 at, struct tuple *t)
{
	struct tuple quoted = {.v6 = t->v6};
	at = read_ip(data, end, at, &quoted);
	if (!at || !read_ports(data, end, at, &quoted)) {
		t->cut = quoted.cut;
		return 0;
	}
	for (int i = 0; i < 4; i++) /* an error goes to the source of its quote (RFC 792, RFC 4443 section 2.2) */
		if (quoted.src.addr[i] != t->dst.addr[i])
			return 0;
	t->src = quoted.dst;
	t->dst = quoted.src;
	t->fragment = quoted.fragment;
	return 1;
}

INLINE bool read_icmp(void *data, void *end, __u32 at, struct tuple *t)
{
	struct icmp *icmp = data + at;
	if (!within(icmp + 1, end, t))
		return 0;
	t->echo = icmp->type == (t->v6 ? 128 : 8);
	if (t->echo)
		return 1;
	/* Neighbour discovery by a neighbour of the destination, which asks whether it is still
	 * reachable, or answers (RFC 4861 sections 4.3, 4.4, 7.1). It is for the announcer, or for a
	 * socket of the node. */
	t->neighbour = t->v6 && t->hop_limit == 255 && (icmp->type == 135 || icmp->type == 136);
	/* Unreachable, too big, time exceeded, parameter problem; not redirect, which is about the
	 * kernel's routes, and not source quench (RFC 6633). */
	if (t->v6 ? icmp->type < 1 || icmp->type > 4 : icmp->type != 3 && icmp->type != 11 && icmp->type != 12)
		return 0;
	return read_quote(data, end, at + sizeof(*icmp), t);
}

/* Reads a plain frame: untagged, not fragmented, without options or extension headers, with ports.
 * Nearly all frames are plain, and this needs no loop and no call. If it returns false, t is
 * unchanged, and read_frame must be called. For a plain frame read_frame gives the same result. */
INLINE bool read_plain(void *data, void *end, struct tuple *t)
{
	struct ethernet *eth = data;
	struct ipv4 *v4 = data + sizeof(*eth);
	struct ipv6 *v6 = data + sizeof(*eth);
	struct ports *p = (void *)(v4 + 1);
	__u8 proto;
	if ((void *)(p + 1) > end || eth->dst[0] & 1)
		return 0;
	if (eth->type == ntohs(ETHERTYPE_IPV4)) {
		proto = v4->proto;
		if (v4->version_ihl != 0x45 || v4->fragment & ntohs(0x3fff) || !has_ports(proto))
			return 0;
		take_ipv4(v4, t);
	} else {
		p = (void *)(v6 + 1);
		if (eth->type != ntohs(ETHERTYPE_IPV6) || (void *)(p + 1) > end)
			return 0;
		proto = v6->next;
		if (ntohl(v6->version_class_flow) >> 28 != 6 || !has_ports(proto))
			return 0;
		take_ipv6(v6, t);
		t->v6 = 1;
	}
	take_transport(&t->src, p->src, proto);
	take_transport(&t->dst, p->dst, proto);
	return 1;
}

/* Reads any frame. Returns false if no rule can match it. */
INLINE bool read_frame(void *data, void *end, struct tuple *t)
{
	struct ethernet *eth = data;
	if (!within(eth + 1, end, t) || eth->dst[0] & 1)
		return 0;
	__u32 at = sizeof(*eth);
	__u16 type = ntohs(eth->type);
	for (int i = 0; i < MAX_VLAN_TAGS && (type == ETHERTYPE_VLAN || type == ETHERTYPE_QINQ); i++) {
		struct vlan *tag = data + at;
		if (!within(tag + 1, end, t))
			return 0;
		__u32 id = ntohs(tag->tci) & 0xfff;
		if (id)
			t->vlans = t->vlans << 16 | (type == ETHERTYPE_QINQ) << 12 | id;
		type = ntohs(tag->type);
		at += sizeof(*tag);
	}
	t->v6 = type == ETHERTYPE_IPV6;
	if (!t->v6 && type != ETHERTYPE_IPV4)
		return 0;
	at = read_ip(data, end, at, t);
	if (!at)
		return 0;
	if (!t->fragment && t->dst.proto == (t->v6 ? PROTO_ICMPV6 : PROTO_ICMP))
		return read_icmp(data, end, at, t);
	return read_ports(data, end, at, t);
}
