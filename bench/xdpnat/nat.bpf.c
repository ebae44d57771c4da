//go:build ignore

// SPDX-License-Identifier: Apache-2.0
/* NAT of IPv4 UDP and TCP on two interfaces. A known flow costs one lookup: its entry has
 * the new addresses and ports, the changes of both checksums, and the next hop. A new flow
 * chooses a backend by a Maglev table and a free SNAT port, and gets two entries, one for
 * each direction.
 *
 * Packets of other protocols, and packets without a service and an entry, pass to the kernel.
 */
#include "../../xdpprog/kernel.h"

enum { MAP_DEVMAP = 14, MAP_LRU_HASH = 9 };
enum { IF_NEW = 1 }; /* BPF_NOEXIST */

static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static __u32 (*const get_prandom_u32)(void) = (void *)7;

enum { FRONT, BACK, HOPS };

struct hop { /* as a frame begins, in words: to whom an interface's packets go, and from whom */
	__u32 addresses[3];
};

/* Set by the loader. */
volatile const struct hop hops[HOPS] = {};
volatile const __be32 snat_addrs[16] = {};
volatile const __u32 snat_count = 1; /* of snat_addrs */
volatile const __u32 first_port = 1024, port_count = 64512;

enum { PORT_TRIES = 32 };

struct tuple {
	__be32 src, dst;
	__be16 sport, dport;
	__u32 proto;
};

/* The translation of packets of one direction. The sums are the changes of the checksums (RFC 1624,
 * section 3); the IP header's sum includes the decrement of the TTL. */
struct entry {
	__be32 src, dst;
	__be16 sport, dport;
	__u16 ip_sum, transport_sum;
	__u32 hop;
};

struct frontend {
	__be32 addr;
	__be16 port;
	__u16 proto;
};

struct service { /* its part of the Maglev tables */
	__u32 first, slots;
};

struct backend {
	__be32 addr;
	__be16 port, unused;
};

struct counts {
	__u64 made;    /* flows: of one that was evicted again */
	__u64 no_port; /* packets of new flows dropped: no SNAT port was free in PORT_TRIES tries */
	__u64 failed;  /* packets of new flows dropped: no entry could be made */
};

struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 1);
	TYPE(key, struct tuple);
	TYPE(value, struct entry);
} flows SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 1);
	TYPE(key, struct frontend);
	TYPE(value, struct service);
} services SEC(".maps");

struct { /* all services' Maglev tables, one after another: places in backends */
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, __u32);
} maglev SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct backend);
} backends SEC(".maps");

struct {
	UINT(type, MAP_DEVMAP);
	UINT(max_entries, HOPS);
	TYPE(key, __u32);
	TYPE(value, __u32);
} ports SEC(".maps");

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct counts);
} totals SEC(".maps");

INLINE __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The change of a checksum when a word replaces another one. */
INLINE __u32 changed(__u32 before, __u32 after)
{
	return (~before & 0xffff) + (~before >> 16) + (after & 0xffff) + (after >> 16);
}

/* The checksum after a change, both in network order: sums are order-independent (RFC 1071, sec. 2). */
INLINE __u16 adjusted(__u16 checksum, __u16 sum)
{
	return ~fold((__u16)~checksum + sum);
}

/* The entry of packets that arrive with tuple t and leave with another tuple. */
INLINE struct entry translation(const struct tuple *t, __be32 src, __be16 sport, __be32 dst, __be16 dport, __u32 hop)
{
	__u16 addresses = fold(changed(t->src, src) + changed(t->dst, dst));
	__u16 transport = fold((__u32)addresses + (__u16)~t->sport + sport + (__u16)~t->dport + dport);
	/* The TTL is the low byte of its word in this machine's byte order: subtract one. */
	return (struct entry){src, dst, sport, dport, fold((__u32)addresses + 0xfffe), transport, hop};
}

INLINE __u32 hash(const struct tuple *t)
{
	__u64 h = ((__u64)t->src << 32 | (__u32)t->sport << 16 | t->dport) * 0x9e3779b97f4a7c15ULL ^ t->dst ^ t->proto;
	h ^= h >> 32;
	h *= 0xd6e8feb86659fd93ULL;
	return h >> 32;
}

/* Makes both entries of a new flow to a backend; false: counted, and the caller drops the packet. */
INLINE bool make(const struct tuple *t, const struct backend *b, struct counts *c, struct entry *out)
{
	__be32 from = snat_addrs[get_prandom_u32() % snat_count & 15];
	struct tuple reply = {.src = b->addr, .dst = from, .sport = b->port, .proto = t->proto};
	__u32 at = ntohs(t->sport) - first_port; /* the client's own port first, as the kernel does */
	bool taken = 0;
	for (int i = 0; i < PORT_TRIES && !taken; i++) {
		if (at < port_count) {
			reply.dport = ntohs((__u16)(first_port + at));
			struct entry back = translation(&reply, t->dst, t->dport, t->src, t->sport, FRONT);
			taken = !map_lookup(&flows, &reply) && !map_update(&flows, &reply, &back, IF_NEW);
		}
		if (!taken)
			at = (__u32)(((__u64)get_prandom_u32() * port_count) >> 32);
	}
	if (!taken) {
		c->no_port++;
		return 0;
	}
	*out = translation(t, from, reply.dport, b->addr, b->port, BACK);
	if (map_update(&flows, t, out, IF_NEW)) {
		/* Another CPU has made this flow meanwhile, or the map has no memory. */
		map_delete(&flows, &reply);
		struct entry *theirs = map_lookup(&flows, t);
		if (!theirs) {
			c->failed++;
			return 0;
		}
		*out = *theirs;
		return 1;
	}
	c->made++;
	return 1;
}

/* XDP_REDIRECT: out is the packet's translation. */
INLINE int admit(const struct tuple *t, struct entry *out)
{
	struct frontend f = {t->dst, t->dport, (__u16)t->proto};
	struct service *s = map_lookup(&services, &f);
	if (!s || !s->slots)
		return XDP_PASS;
	__u32 slot = s->first + (__u32)(((__u64)hash(t) * s->slots) >> 32), zero = 0;
	__u32 *chosen = map_lookup(&maglev, &slot);
	struct backend *b = chosen ? map_lookup(&backends, chosen) : 0;
	struct counts *c = map_lookup(&totals, &zero);
	if (!b || !c)
		return XDP_PASS;
	return make(t, b, c, out) ? XDP_REDIRECT : XDP_DROP;
}

INLINE int forward(struct ethernet *eth, struct ipv4 *ip, struct ports *p, __u16 *checksum, const struct entry *e)
{
	__u32 *addresses = (__u32 *)eth;
	for (int i = 0; i < 3; i++)
		addresses[i] = hops[e->hop & 1].addresses[i];
	ip->src = e->src;
	ip->dst = e->dst;
	ip->ttl--;
	ip->checksum = adjusted(ip->checksum, e->ip_sum);
	p->src = e->sport;
	p->dst = e->dport;
	/* For UDP, 0 means no checksum (RFC 768). */
	if (ip->proto == PROTO_TCP) {
		*checksum = adjusted(*checksum, e->transport_sum);
	} else if (*checksum) {
		__u16 sum = adjusted(*checksum, e->transport_sum);
		*checksum = sum ? sum : 0xffff;
	}
	return redirect_map(&ports, e->hop, XDP_DROP);
}

SEC("xdp") int nat(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	struct ethernet *eth = (struct ethernet *)data;
	struct ipv4 *ip = (struct ipv4 *)(eth + 1);
	struct ports *p = (struct ports *)(ip + 1);
	__u16 *checksum = (__u16 *)((__u8 *)p + 6); /* RFC 768 */
	if ((__u8 *)(p + 2) > end || eth->type != ntohs(ETHERTYPE_IPV4) || ip->version_ihl != 0x45 ||
	    ip->fragment & ntohs(0x3fff) || ip->ttl < 2)
		return XDP_PASS;
	if (ip->proto == PROTO_TCP) {
		checksum = (__u16 *)((__u8 *)p + 16); /* RFC 9293, section 3.1 */
		if ((__u8 *)(checksum + 1) > end)
			return XDP_PASS;
	} else if (ip->proto != PROTO_UDP) {
		return XDP_PASS;
	}
	struct tuple t = {ip->src, ip->dst, p->src, p->dst, ip->proto};
	struct entry *known = map_lookup(&flows, &t), made;
	if (known)
		return forward(eth, ip, p, checksum, known);
	int verdict = admit(&t, &made);
	return verdict == XDP_REDIRECT ? forward(eth, ip, p, checksum, &made) : verdict;
}

char _license[] SEC("license") = "Apache-2.0";
