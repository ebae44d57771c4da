// SPDX-License-Identifier: Apache-2.0
/* The maps of steer.bpf.c: rules and settings from user space, and counters for it. */
#pragma once

#include "kernel.h"

/* Address (IPv4 mapped), port, protocol: the key of frontends and keep_sources. 24 bytes, because
 * the kernel compares keys in units of eight bytes, and the remainder byte by byte. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u8 proto, zero[5];
} __attribute__((aligned(8)));

/* The value of a frontend's entry. AT_NODE: its address is one of the node's, so the node's own
 * sockets have priority. Such a frontend has no shortcut. */
enum frontend_value { PLAIN_FRONTEND = 1, AT_NODE = 2 };

/* Properties of an address: its roles for the gateway (VIP, NODE, SNAT); a map below has an entry
 * with it (HAS_FRONTEND, HAS_KEEP); it is one of the node's, which alone is no reason to steer
 * (LOCAL). */
enum addr_flags {
	VIP = 1,
	NODE = 2,
	SNAT = 4,
	HAS_FRONTEND = 8,
	HAS_KEEP = 16,
	LOCAL = 32,
};

/* Kinds of shortcuts, each a reason to steer an IPv4 packet: a frontend, an address that receives
 * replies, an address that accepts node ports, an SNAT address that the node does not have. A word
 * of a shortcut has the address, port, protocol and kind; only frontends have a port and a
 * protocol. No word is 0. */
enum shortcut_kind { SHORT_FRONTEND = 1, SHORT_SNAT, SHORT_NODE, SHORT_OWN_SNAT };
/* The first port at which the last kind receives replies (RFC 6335 section 6: lower ones are system
 * ports). */
enum { OWN_SNAT_FIRST = 1024 };
enum { SHORTCUT_WORDS = 8, SHORTCUT_BITS = 14 };

/* Words with the same hash, in one cache line. */
struct shortcut {
	__u64 word[SHORTCUT_WORDS];
};

struct config {
	__u64 pass_after_ns; /* a heartbeat older than this does not count */
	__u32 host_link;     /* ifindex of the kernel-side end; 0: egress is off */
	__u16 snat_first, snat_count;
	__u16 unserved; /* not 0: steer all packets to an address that is the gateway's and not the node's */
	__u16 kept_replies; /* not 0: map replies has ports */
	__u16 local_first, local_count; /* ports of the node's own connections: net.ipv4.ip_local_port_range */
	__u32 deny; /* not 0: map denied has entries */
};

struct counts {
	__u64 steered, passed, missed_dropped, missed_passed, egress_redirected, foreign_passed, sent_back_dropped;
	__u64 denied_dropped;
};

/* A prefix of denied clients; bits counts from the start of the IPv6 address that maps an IPv4
 * address. */
struct prefix {
	__u32 bits;
	__be32 addr[4];
};

/* until_ns: the time of CLOCK_BOOTTIME from which the entry has no effect; 0: no such time. */
struct denial {
	__u64 until_ns, packets;
};

/* The unicast destination MAC addresses of frames for this node, the interface's first. A word has
 * an address in its upper six bytes: the first word of a frame, shifted by 16 bits. n is 0: the
 * addresses are not known. */
enum { MAX_MACS = 64 };
struct mac_set {
	__u64 n, word[MAX_MACS];
};

/* The active set is number active & 1. User space writes the other set, then active: so no frame is
 * compared with a half-written set. */
struct mac_sets {
	__u64 active;
	struct mac_set set[2];
};

/* Each interface has its own instance of these four maps; all other maps are shared. xsks: the
 * sockets by receive queue. queues: the number of queues, from the first on, that are to have a
 * socket; 0: all. macs and vlans: the MAC addresses and VLANs (struct tuple) of frames for this
 * node. */
struct { UINT(type, MAP_XSK); UINT(max_entries, 1024); UINT(key_size, 4); UINT(value_size, 4); } xsks SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, __u32); } queues SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(map_flags, MMAPABLE); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct mac_sets); } macs SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(map_flags, NO_PREALLOC); UINT(max_entries, 4096); TYPE(key, __u32); TYPE(value, __u8); } vlans SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, struct endpoint); TYPE(value, __u8); } frontends SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, struct endpoint); TYPE(value, __u8); } keep_sources SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, __be32[4]); TYPE(value, enum addr_flags); } addrs SEC(".maps");
/* Bit p%64 of word (IPv6 ? 3 : 0 + TCP 0, UDP 1, SCTP 2) * 1024 + p/64: node port p is open. */
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 6 * 1024); TYPE(key, __u32); TYPE(value, __u64); } nodeports SEC(".maps");
/* Like nodeports: the ports outside of snat_first and snat_count at which replies arrive, because
 * live flows have them as source ports. */
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 6 * 1024); TYPE(key, __u32); TYPE(value, __u64); } replies SEC(".maps");
/* Repeats a part of the maps above, for one array lookup instead of a hash search. Entries without
 * a shortcut are only in those maps. */
struct { UINT(type, MAP_ARRAY); UINT(map_flags, MMAPABLE); UINT(max_entries, 1 << SHORTCUT_BITS); TYPE(key, __u32); TYPE(value, struct shortcut); } shortcuts SEC(".maps");
/* A search in denied takes a step for each bit that differs between prefixes. So deny_hints says
 * for which addresses it may find one. Bit s%64 of word (IPv6 ? 1024 : 0) + s/64: denied has a
 * prefix with addresses of slice s, the first 16 bits of an IPv4 address or a hash of the first 32
 * bits of an IPv6 address. denied has room for an entry more than MaxDenied of denied.go: older
 * kernels need it to replace one. */
struct { UINT(type, MAP_LPM_TRIE); UINT(map_flags, NO_PREALLOC); UINT(max_entries, (1 << 16) + 1); TYPE(key, struct prefix); TYPE(value, struct denial); } denied SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 2 * 1024); TYPE(key, __u32); TYPE(value, __u64); } deny_hints SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct config); } settings SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, __u64); } heartbeat SEC(".maps");
struct { UINT(type, MAP_PERCPU_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct counts); } counters SEC(".maps");
