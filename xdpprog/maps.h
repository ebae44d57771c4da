// SPDX-License-Identifier: Apache-2.0
/* The maps of steer.bpf.c: what user space tells the programs and they tell it. */
#pragma once

#include "kernel.h"

/* Address (IPv4 mapped), port, protocol: the key of frontends and keep_sources. 24 bytes, as the
 * kernel compares keys by eight bytes, and what is left byte by byte. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u8 proto, zero[5];
} __attribute__((aligned(8)));

/* What a frontend's entry says besides that it is one: its address is one of the node's, so the node's
 * own sockets come first. Such a frontend has no shortcut. */
enum frontend_value { PLAIN_FRONTEND = 1, AT_NODE = 2 };

/* Why an address matters: what it is to us; that a map below has an entry with
 * it; that it is one of the node's, which by itself is no reason to steer. */
enum addr_flags {
	VIP = 1,
	NODE = 2,
	SNAT = 4,
	HAS_FRONTEND = 8,
	HAS_KEEP = 16,
	LOCAL = 32,
};

/* What says of an IPv4 packet that it is ours: a frontend, an address that replies or node ports
 * come to, an SNAT address that the node does not have. A word of a shortcut: address, port,
 * protocol, which of these; all but the first kind have neither port nor protocol. No word is 0. */
enum shortcut_kind { SHORT_FRONTEND = 1, SHORT_SNAT, SHORT_NODE, SHORT_OWN_SNAT };
/* The first port that replies to such an address come to (RFC 6335 section 6: below are system ports). */
enum { OWN_SNAT_FIRST = 1024 };
enum { SHORTCUT_WORDS = 8, SHORTCUT_BITS = 14 };

/* Words with the same hash, in one cache line. */
struct shortcut {
	__u64 word[SHORTCUT_WORDS];
};

struct config {
	__u64 pass_after_ns; /* a heartbeat older than this is no heartbeat */
	__u32 host_link;     /* ifindex of the kernel-side end; 0: egress is off */
	__u16 snat_first, snat_count;
	__u16 unserved; /* not 0: all that goes to an address that is ours and none of the node's is ours */
	__u16 kept_replies; /* not 0: map replies has ports */
	__u16 local_first, local_count; /* ports of the node's own connections: net.ipv4.ip_local_port_range */
};

struct counts {
	__u64 steered, passed, missed_dropped, missed_passed, egress_redirected, foreign_passed, sent_back_dropped;
};

/* The unicast MAC addresses that frames for this node have as destination, that of the interface
 * first: the first six bytes of a frame, as the upper six of a word that is
 * read from there. None: they are not known. */
enum { MAX_MACS = 64 };
struct mac_set {
	__u64 n, word[MAX_MACS];
};

/* The set in use is number active & 1. The other one is written, then active: no frame meets half
 * of a change. */
struct mac_sets {
	__u64 active;
	struct mac_set set[2];
};

/* Each interface has these four of its own; all other maps are shared. The sockets by
 * receive queue; how many queues, from the first on, are meant to have one; 0: all; for which MAC
 * addresses and for which VLANs (struct tuple) frames are this node's. */
struct { UINT(type, MAP_XSK); UINT(max_entries, 1024); UINT(key_size, 4); UINT(value_size, 4); } xsks SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, __u32); } queues SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(map_flags, MMAPABLE); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct mac_sets); } macs SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(map_flags, NO_PREALLOC); UINT(max_entries, 4096); TYPE(key, __u32); TYPE(value, __u8); } vlans SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, struct endpoint); TYPE(value, __u8); } frontends SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, struct endpoint); TYPE(value, __u8); } keep_sources SEC(".maps");
struct { UINT(type, MAP_HASH); UINT(max_entries, 1); TYPE(key, __be32[4]); TYPE(value, enum addr_flags); } addrs SEC(".maps");
/* Bit p%64 of word (IPv6 ? 3 : 0 + TCP 0, UDP 1, SCTP 2) * 1024 + p/64: node port p is open. */
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 6 * 1024); TYPE(key, __u32); TYPE(value, __u64); } nodeports SEC(".maps");
/* As nodeports: the ports outside of snat_first and snat_count that replies come to, because live flows
 * have them as source ports. */
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 6 * 1024); TYPE(key, __u32); TYPE(value, __u64); } replies SEC(".maps");
/* Part of what the maps above say, for one look instead of a search. What it lacks, they have. */
struct { UINT(type, MAP_ARRAY); UINT(map_flags, MMAPABLE); UINT(max_entries, 1 << SHORTCUT_BITS); TYPE(key, __u32); TYPE(value, struct shortcut); } shortcuts SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct config); } settings SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, __u64); } heartbeat SEC(".maps");
struct { UINT(type, MAP_PERCPU_ARRAY); UINT(max_entries, 1); TYPE(key, __u32); TYPE(value, struct counts); } counters SEC(".maps");
