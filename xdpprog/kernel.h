// SPDX-License-Identifier: Apache-2.0
/* Only the parts of the kernel's BPF interface and of the wire formats that steer.bpf.c needs. So
 * the object depends only on the compiler, and not on the kernel and libbpf headers of the build
 * host. Numbers and offsets are the kernel's stable interface (include/uapi/linux/bpf.h).
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef __u16 __be16; /* network byte order */
typedef __u32 __be32;
typedef _Bool bool;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define UINT(name, value) int (*name)[value] /* a number in a map's BTF */
#define TYPE(name, type) typeof(type) *name  /* a type in a map's BTF */
#define ntohs(x) __builtin_bswap16(x)        /* the object is little-endian */
#define ntohl(x) __builtin_bswap32(x)

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_LPM_TRIE = 11, MAP_XSK = 17 };
enum { NO_PREALLOC = 1 };    /* BPF_F_NO_PREALLOC */
enum { MMAPABLE = 1 << 10 }; /* BPF_F_MMAPABLE: among other effects, values begin at a page boundary */
enum { XDP_DROP = 1, XDP_PASS = 2, XDP_REDIRECT = 4 };
enum { TCX_NEXT = -1, TCX_DROP = 2 };
#define CURRENT_NETNS ((__u64)-1) /* BPF_F_CURRENT_NETNS: the device's namespace */

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index;
};

struct __sk_buff {
	__u32 len, unused_4[8];
	__u32 ingress_ifindex, ifindex, unused_44[8];
	__u32 data, data_end;
};

struct bpf_sock; /* referenced: the result of a lookup must be released */

struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr, daddr;
			__be16 sport, dport;
		} ipv4;
		struct {
			__be32 saddr[4], daddr[4];
			__be16 sport, dport;
		} ipv6;
	};
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static struct bpf_sock *(*const sk_lookup_udp)(struct xdp_md *ctx, struct bpf_sock_tuple *t, __u32 size, __u64 netns,
					       __u64 flags) = (void *)85;
static long (*const sk_release)(struct bpf_sock *sk) = (void *)86;
static struct bpf_sock *(*const skc_lookup_tcp)(struct xdp_md *ctx, struct bpf_sock_tuple *t, __u32 size, __u64 netns,
						__u64 flags) = (void *)99;
static long (*const redirect_map)(void *map, __u64 key, __u64 action_on_miss) = (void *)51;
static __u64 (*const ktime_get_boot_ns)(void) = (void *)125;

enum {
	ETHERTYPE_IPV4 = 0x0800,
	ETHERTYPE_VLAN = 0x8100, /* IEEE 802.1Q */
	ETHERTYPE_IPV6 = 0x86dd,
	ETHERTYPE_QINQ = 0x88a8, /* IEEE 802.1ad */
};

enum { /* IANA protocol numbers and IPv6 extension header types */
	PROTO_HOPOPTS = 0,
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_AH = 51,
	PROTO_ICMPV6 = 58,
	PROTO_DSTOPTS = 60,
	PROTO_SCTP = 132,
};

struct ethernet {
	__u8 dst[6], src[6];
	__be16 type;
};

struct vlan {
	__be16 tci, type;
};

struct ipv4 { /* RFC 791 section 3.1 */
	__u8 version_ihl, tos;
	__be16 len, id, fragment;
	__u8 ttl, proto;
	__be16 checksum;
	__be32 src, dst;
};

struct ipv6 { /* RFC 8200 section 3 */
	__be32 version_class_flow;
	__be16 len;
	__u8 next, hop_limit;
	__be32 src[4], dst[4];
};

struct extension { /* RFC 8200 section 4; the third field is only in a fragment header */
	__u8 next, len;
	__be16 fragment;
	__be32 rest;
};

struct ports { /* the first four bytes of TCP, UDP and SCTP */
	__be16 src, dst;
};

struct icmp { /* RFC 792, RFC 4443 section 2.1; an error's quote follows */
	__u8 type, code;
	__be16 checksum;
	__be32 rest;
};
