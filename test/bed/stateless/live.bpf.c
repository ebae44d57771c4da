//go:build ignore

// SPDX-License-Identifier: Apache-2.0
/* Turns the frame it is run on into the next packet, and redirects it into the
 * interface. The kernel runs it on frames that it recycles (BPF_F_TEST_XDP_LIVE_FRAMES),
 * so a frame holds the template or an earlier packet; everything that differs
 * between packets is written, nothing of it is read, and checksums are sums of
 * a constant part (in struct size) and what is written.
 *
 * One thread runs one copy of the program at a time, so its state needs no lock.
 */
#include "../../../xdpprog/kernel.h"
#include "tag.h"

enum { MAX_SIZES = 16, MAX_PATTERN = 256, STRIDES = 16, STAMP_EVERY = 16 };

struct size {
	__u32 frame_len;
	__u32 ip_sum, l4_sum; /* of all that does not change, folded to 16 bits */
	__u16 ip_len, l4_len;
};

/* A divisor and 2^32 / divisor. */
struct divisor {
	__u32 by, inverse;
};

struct traffic {
	__u32 ifindex, run;
	__u32 src_offset, dst_offset;      /* of the last 32 bits of the addresses */
	__u32 ports_offset, tag_offset;
	__u32 ip_len_offset, ip_sum_offset; /* ip_sum_offset is 0 with IPv6 */
	__u32 l4_len_offset, l4_sum_offset; /* l4_len_offset is 0 without such a field */
	__u32 pseudo;                       /* the transport checksum covers addresses */
	__u32 udp;                          /* a checksum of 0 is sent as 0xffff */
	__u32 sources, destinations;        /* the first, in host order */
	__u32 source_port, destination_port;
	struct divisor source_count, source_port_count, destination_count;
	__u32 flows, first_flow, flow_step; /* this thread has first, first + step, ... */
	__u32 size_count, pattern_len;
	__u32 strides[STRIDES];
	struct size sizes[MAX_SIZES];
	__u8 pattern[MAX_PATTERN];
};

volatile const struct traffic plan = {};

struct progress {
	__u64 quota; /* packets that may still be sent; the thread sets it */
	__u64 packets, bytes;
	__u64 now;
	__u32 position, left, round, pattern_at;
};

struct progress state = {};

static __u64 (*const ktime_get_ns)(void) = (void *)5;
static long (*const xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;

/* Quotient and, in *rest, remainder. The estimate is at most one too low. */
INLINE __u32 divide(__u32 n, volatile const struct divisor *d, __u32 *rest)
{
	__u32 quotient = (__u64)n * d->inverse >> 32, r = n - quotient * d->by;
	if (r >= d->by) {
		quotient++;
		r -= d->by;
	}
	*rest = r;
	return quotient;
}

INLINE __u32 sum32(__u32 v) { return (v >> 16) + (v & 0xffff); }

INLINE __u16 checksum(__u32 sum)
{
	sum = sum32(sum);
	sum = sum32(sum);
	return ~sum;
}

/* The flow whose turn it is. Each round visits all of them in another order. */
INLINE __u32 next_flow(struct progress *s)
{
	if (s->left == 0) {
		s->left = plan.flows;
		s->round++;
	}
	s->left--;
	s->position += plan.strides[s->round % STRIDES];
	if (s->position >= plan.flows)
		s->position -= plan.flows;
	return plan.first_flow + s->position * plan.flow_step;
}


INLINE int write_packet(struct xdp_md *ctx, volatile const struct size *size, __u32 flow)
{
	__u8 *p = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	if (p + plan.tag_offset + sizeof(struct tag) > end)
		return -1;
	__u32 at, rest = divide(flow, &plan.source_count, &at);
	__u32 src = plan.sources + at;
	rest = divide(rest, &plan.source_port_count, &at);
	__u32 ports = plan.source_port + at;
	rest = divide(rest, &plan.destination_count, &at);
	__u32 dst = plan.destinations + at;
	ports = ports << 16 | (plan.destination_port + rest);

	struct tag *t = (struct tag *)(p + plan.tag_offset);
	__u32 round = state.round, high = state.now >> 32 & 0xffff, low = state.now;
	t->run = ntohs((__u16)plan.run);
	t->flow = ntohl(flow);
	t->sequence = ntohl(round);
	t->time_high = ntohs((__u16)high);
	t->time_low = ntohl(low);

	__u32 addresses = sum32(src) + sum32(dst);
	__u32 l4 = size->l4_sum + sum32(ports) + sum32(flow) + sum32(round) + high + sum32(low);
	if (plan.pseudo)
		l4 += addresses;
	__u16 l4_sum = checksum(l4);
	if (plan.udp && !l4_sum)
		l4_sum = 0xffff;
	if (p + plan.src_offset + 4 > end || p + plan.dst_offset + 4 > end || p + plan.ports_offset + 4 > end ||
	    p + plan.ip_len_offset + 2 > end || p + plan.l4_sum_offset + 2 > end)
		return -1;
	*(__be32 *)(p + plan.src_offset) = ntohl(src);
	*(__be32 *)(p + plan.dst_offset) = ntohl(dst);
	*(__be32 *)(p + plan.ports_offset) = ntohl(ports);
	*(__be16 *)(p + plan.ip_len_offset) = ntohs(size->ip_len);
	*(__be16 *)(p + plan.l4_sum_offset) = ntohs(l4_sum);
	if (plan.ip_sum_offset) {
		if (p + plan.ip_sum_offset + 2 > end)
			return -1;
		*(__be16 *)(p + plan.ip_sum_offset) = ntohs(checksum(size->ip_sum + addresses));
	}
	if (plan.l4_len_offset) {
		if (p + plan.l4_len_offset + 2 > end)
			return -1;
		*(__be16 *)(p + plan.l4_len_offset) = ntohs(size->l4_len);
	}
	return 0;
}

SEC("xdp") int live(struct xdp_md *ctx)
{
	struct progress *s = &state;
	if (s->quota == 0)
		return XDP_DROP;
	__u32 at = s->pattern_at;
	s->pattern_at = at + 1 < plan.pattern_len ? at + 1 : 0;
	__u32 which = plan.pattern[at % MAX_PATTERN] % MAX_SIZES;
	volatile const struct size *size = &plan.sizes[which];
	if (plan.size_count > 1) {
		int delta = (int)size->frame_len - (int)(ctx->data_end - ctx->data);
		if (delta && xdp_adjust_tail(ctx, delta))
			return XDP_DROP;
	}
	if (s->packets % STAMP_EVERY == 0)
		s->now = ktime_get_ns();
	if (write_packet(ctx, size, next_flow(s)))
		return XDP_DROP;
	s->quota--;
	s->packets++;
	s->bytes += size->frame_len;
	return redirect(plan.ifindex, 0);
}

char _license[] SEC("license") = "Apache-2.0";
