//go:build ignore

// SPDX-License-Identifier: Apache-2.0
/* The receiving interface. Both programs look for the tag at the one place where a
 * packet of this traffic has it, and leave everything else to the kernel (ARP, ND).
 *
 *   count      counts the packet and drops it, noting how old it is if it is to
 *   redirect   gives the packet to the AF_XDP socket of its queue, with the time
 */
#include "../../../xdpprog/kernel.h"
#include "tag.h"

/* What the traffic looks like. The loader sets these. */
volatile const __u32 l3_offset = 14, tag_offset = 42, later_tag_offset = 0, v6 = 0;
volatile const __u32 flow_count = 1;
volatile const __u32 timed = 0; /* count: how old packets are, too */
volatile const __u32 kept = 0;  /* count: of so many packets when they were sent and came, too */

__u32 run = 0;       /* changes with each trial */
__u32 arrived = 0;   /* packets of this run that are kept, or would be if there were room */
__u32 unstamped = 0; /* set where the driver has no room before a packet */

struct counts {
	__u64 packets, bytes; /* of this run */
	__u64 foreign;        /* not ours at all; the kernel's */
	__u64 stale;          /* of another run; dropped */
};

enum { SAMPLES = 16, SAMPLE_BYTES = 128, SAMPLE_EVERY = 4096, MIN_FRAME = 60 };

struct sample {
	__u32 len;
	__u8 bytes[SAMPLE_BYTES];
};

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct counts);
} totals SEC(".maps");

/* Ages of packets in nanoseconds: exact below 32, and from there on 32 steps between
 * powers of two, up to 2^40, which is 18 minutes. delays.go is the twin. */
enum { DELAY_FINE = 5, DELAY_STEPS = 1 << DELAY_FINE, DELAY_TOP = 40, DELAYS = (DELAY_TOP - DELAY_FINE + 1) << DELAY_FINE };

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, DELAYS);
	TYPE(key, __u32);
	TYPE(value, __u64);
} delays SEC(".maps");

struct arrival {
	__u64 sent, came; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 flow, cpu;
};

struct { /* the loader sets the size */
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct arrival);
} arrivals SEC(".maps");

struct { /* a bit per flow that was seen; the loader sets the size */
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, __u64);
} flows SEC(".maps");

struct { /* the first packet on each CPU and then one of SAMPLE_EVERY */
	UINT(type, MAP_ARRAY);
	UINT(max_entries, SAMPLES);
	TYPE(key, __u32);
	TYPE(value, struct sample);
} samples SEC(".maps");

struct {
	UINT(type, MAP_XSK);
	UINT(max_entries, 64);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SEC(".maps");

static __u64 (*const ktime_get_ns)(void) = (void *)5;
static __u32 (*const smp_processor_id)(void) = (void *)8;
static long (*const xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static long (*const xdp_load_bytes)(struct xdp_md *ctx, __u32 offset, void *to, __u32 len) = (void *)189;

INLINE struct tag *tag_at(__u8 *p, __u8 *end, __u32 offset)
{
	return p + offset + sizeof(struct tag) > end ? 0 : (struct tag *)(p + offset);
}

/* The tag of a packet that is ours, of whatever run. */
INLINE struct tag *find_tag(struct xdp_md *ctx)
{
	__u8 *p = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	if (p + l3_offset + 44 > end || p[l3_offset] >> 4 != (v6 ? 6 : 4))
		return 0;
	struct tag *t;
	__be16 *fragment = (__be16 *)(p + l3_offset + (v6 ? 42 : 6));
	if (later_tag_offset && *fragment & (v6 ? ntohs(0xfff8) : ntohs(0x1fff)))
		t = tag_at(p, end, later_tag_offset);
	else
		t = tag_at(p, end, tag_offset);
	return t && t->magic == ntohs(TAG_MAGIC) ? t : 0;
}

INLINE void note_flow(struct tag *t)
{
	__u32 flow = ntohl(t->flow), word = flow / 64;
	__u64 bit = 1ULL << flow % 64;
	__u64 *bits = flow < flow_count ? map_lookup(&flows, &word) : 0;
	if (bits && !(*bits & bit))
		__sync_fetch_and_or(bits, bit);
}

INLINE __u32 delay_bucket(__u64 nanos)
{
	__u32 shift = 0;
	__u64 rest = nanos >> DELAY_FINE;
	for (__u32 step = 32; step; step /= 2) { /* shift = bits of rest - 1 */
		if (rest >> step) {
			rest >>= step;
			shift += step;
		}
	}
	return nanos < DELAY_STEPS ? nanos : (shift << DELAY_FINE) + (nanos >> shift);
}

INLINE void keep_arrival(struct tag *t, __u64 age, __u64 now)
{
	__u32 at = __sync_fetch_and_add(&arrived, 1);
	struct arrival *a = at < kept ? map_lookup(&arrivals, &at) : 0;
	if (!a)
		return;
	a->sent = now - age;
	a->came = now;
	a->flow = ntohl(t->flow);
	a->cpu = smp_processor_id();
}

INLINE void note_delay(struct tag *t)
{
	__u64 sent = (__u64)ntohs(t->time_high) << 32 | ntohl(t->time_low);
	__u64 now = ktime_get_ns(), nanos = (now - sent) & 0xffffffffffff;
	if (nanos >> 47) /* stamped by a CPU whose clock is a little ahead */
		nanos = 0;
	__u32 bucket = delay_bucket(nanos);
	if (bucket >= DELAYS)
		bucket = DELAYS - 1;
	__u64 *n = map_lookup(&delays, &bucket);
	if (n)
		++*n;
	if (kept)
		keep_arrival(t, nanos, now);
}

INLINE void keep_sample(struct xdp_md *ctx, __u32 number)
{
	__u32 at = number % SAMPLES;
	struct sample *s = map_lookup(&samples, &at);
	__u32 len = ctx->data_end - ctx->data;
	if (!s)
		return;
	s->len = len;
	xdp_load_bytes(ctx, 0, s->bytes, len < SAMPLE_BYTES ? MIN_FRAME : SAMPLE_BYTES);
}

/* Returns what becomes of the packet; XDP_REDIRECT stands for a good one. */
INLINE int judge(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct counts *c = map_lookup(&totals, &zero);
	if (!c)
		return XDP_PASS;
	struct tag *t = find_tag(ctx);
	if (!t) {
		c->foreign++;
		return XDP_PASS;
	}
	if (t->run != ntohs((__u16)run)) {
		c->stale++;
		return XDP_DROP;
	}
	note_flow(t);
	if (timed)
		note_delay(t);
	if (c->packets % SAMPLE_EVERY == 0)
		keep_sample(ctx, c->packets / SAMPLE_EVERY);
	c->packets++;
	c->bytes += ctx->data_end - ctx->data;
	return XDP_REDIRECT;
}

/* Writes the time of arrival before the packet, where AF_XDP hands it on. */
INLINE void stamp(struct xdp_md *ctx)
{
	__u64 *time;
	if (!xdp_adjust_meta(ctx, -(int)sizeof(*time))) {
		time = (__u64 *)(long)ctx->data_meta;
		if ((void *)(time + 1) <= (void *)(long)ctx->data) {
			*time = ktime_get_ns();
			return;
		}
	}
	unstamped = 1;
}

SEC("xdp") int count(struct xdp_md *ctx)
{
	int verdict = judge(ctx);
	return verdict == XDP_REDIRECT ? XDP_DROP : verdict;
}

SEC("xdp") int redirect_tagged(struct xdp_md *ctx)
{
	int verdict = judge(ctx);
	if (verdict != XDP_REDIRECT)
		return verdict;
	stamp(ctx);
	return redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}

char _license[] SEC("license") = "Apache-2.0";
