// The worker: rings, frames, and the processing of a packet. Its only purpose is to do the
// gateway's work as fast as C can.
#pragma once
#include "table.h"

#ifndef BURST
#define BURST 128
#endif
#ifndef GROUP
#define GROUP 16
#endif
_Static_assert(BURST % GROUP == 0, "a burst is whole groups");

enum { RING = 4096, FRAME = 2048, HEADROOM = 256, FRAMES = RING + 64 };
enum { ETH = 14, IPV4 = 20, IPV6 = 40, TCP = 6, UDP = 17 };
enum { BACKEND_BITS = 20, BACKEND_SERVING = 1 };
enum { FIN_SYN_RST = 7, ACK = 16 };

struct desc {
	uint64_t addr;
	uint32_t len, options;
};

struct descs {
	uint32_t head, tail;
	struct desc at[RING];
};

struct frames {
	uint32_t head, tail;
	uint64_t at[RING];
};

struct hop {
	uint8_t mac[12]; // destination, source
	uint16_t mtu;
	bool ready;
	uint8_t unused[17];
};

struct backend {
	uint32_t ref, flags;
};

struct counter {
	uint64_t packets[2], bytes[2], unused[4]; // by side
};

// published is the state that the rest of the process reads.
struct published {
	uint64_t rx, rx_bytes, tx, tx_bytes, drops, tick, generation, frames_free, frames_links;
};

// packet is the state passed between the stages of the pipeline.
struct packet {
	uint8_t *p;
	uint64_t hash, addr;
	uint32_t ports, slot, home;
	uint16_t bytes; // of the IP packet
	uint8_t proto, flags;
};

struct worker {
	uint8_t *umem;
	struct table t;
	struct hop hops[1 << 14];
	struct backend *backends;
	struct counter *counters;
	uint32_t generation;
	uint32_t now; // ticks
	uint64_t last_sweep;
	struct descs rx, tx;
	struct frames fill, done;
	uint64_t pool[FRAMES];
	uint32_t free;
	struct published n;
	volatile struct published out;
	struct packet pkt[BURST];
	uint32_t tail, sending; // of this step: where its packets are in rx, where the next goes in tx
};

// martian: RFC 6890 section 2.2.2 and RFC 3927 section 7, address in host order.
INLINE bool martian4(uint32_t a) {
	uint32_t first = a >> 24;
	return ((first - 1 >= 223) & ((first < 240) | (a == UINT32_MAX))) | (first == 127) | (a >> 16 == 0xa9fe);
}

// martian6: RFC 4291 sections 2.5 to 2.7.
INLINE bool martian6(uint64_t hi, uint64_t lo) {
	return ((hi == 0) & ((lo >> 32 == 0) | (lo >> 32 == 0xffff))) | (hi >> 56 == 0xff) | (hi >> 54 == 0xfe80 >> 6);
}

#define VALID_FLAGS (1ull << 2 | 1ull << 34 | 1ull << 18 | 1ull << 4 | 1ull << 20 | 1ull << 17 | 1ull << 49 | 1ull << 16 | 1ull << 48)

INLINE bool bad_transport(const uint8_t *l4, uint32_t bytes, uint8_t proto) {
	uint32_t offset = (uint32_t)(l4[12] >> 4) * 4, length = __builtin_bswap16(load16(l4 + 4));
	bool tcp = proto == TCP;
	bool bad_tcp = (offset < 20) | (offset > bytes) | !(VALID_FLAGS >> (l4[13] & 0x37) & 1);
	bool bad_udp = (length < 8) | (length > bytes) | (proto != UDP);
	return (tcp ? bad_tcp : bad_udp) | (load16(l4) == 0) | (load16(l4 + 2) == 0);
}

// parse classifies a packet; packets with options, extension headers or fragments count as bad
// here.
INLINE bool parse(struct packet *k, uint8_t *p, uint32_t len, const bool v6) {
	const uint8_t *ip = p + ETH;
	uint32_t l4, bytes;
	bool bad;
	k->p = p;
	if (v6) {
		l4 = ETH + IPV6;
		bytes = IPV6 + __builtin_bswap16(load16(ip + 4));
		k->proto = ip[6];
		uint64_t a = __builtin_bswap64(load64(ip + 8)), b = __builtin_bswap64(load64(ip + 16));
		uint64_t c = __builtin_bswap64(load64(ip + 24)), d = __builtin_bswap64(load64(ip + 32));
		bad = (load16(p + 12) != 0xdd86) | (ip[0] >> 4 != 6) | (ip[7] <= 1) | martian6(a, b) | martian6(c, d) | (((a ^ c) | (b ^ d)) == 0);
	} else {
		l4 = ETH + IPV4;
		bytes = __builtin_bswap16(load16(ip + 2));
		k->proto = ip[9];
		k->addr = load64(ip + 12);
		uint32_t src = __builtin_bswap32((uint32_t)k->addr), dst = __builtin_bswap32((uint32_t)(k->addr >> 32));
		uint64_t s = add_carry(add_carry(load64(ip), load64(ip + 8)), load32(ip + 16));
		bad = (load16(p + 12) != 0x0008) | (ip[0] != 0x45) | ((load16(ip + 6) & 0xff3f) != 0) | (ip[8] <= 1) | (fold(s) != 0xffff) |
		      martian4(src) | martian4(dst) | (src == dst);
	}
	uint32_t least = k->proto == TCP ? 20 : 8;
	bad |= (p[0] & 1) | (len < l4 + least) | (ETH + bytes < l4 + least) | (ETH + bytes > len);
	bad |= bad_transport(p + l4, ETH + bytes - l4, k->proto);
	k->bytes = (uint16_t)bytes;
	k->ports = load32(p + l4);
	k->flags = k->proto == TCP ? p[l4 + 13] : ACK;
	return bad;
}

INLINE void address_of(const struct packet *k, uint64_t *a, const bool v6) {
	if (v6)
		memcpy(a, k->p + ETH + 8, 32);
	else
		a[0] = k->addr;
}

INLINE void drop(struct worker *w, const struct packet *k) {
	w->n.drops++;
	w->pool[w->free++] = (uint64_t)(k->p - w->umem) & ~(uint64_t)(FRAME - 1);
}

// first: read, classify, hash, prefetch the bucket. A bad packet ends here, with p NULL. It returns
// the frame's length.
INLINE uint32_t first(struct worker *w, struct packet *k, const struct desc *d, const bool v6) {
	uint64_t a[4];
	uint32_t len = d->len;
	if (unlikely(parse(k, w->umem + d->addr, len, v6))) {
		drop(w, k);
		k->p = NULL;
		k->home = 0;
		return len;
	}
	address_of(k, a, v6);
	k->hash = hash_key(&w->t, a, k->ports, k->proto, v6);
	k->home = (uint32_t)home_of(&w->t, k->hash);
	__builtin_prefetch(&w->t.buckets[k->home], 0, 3);
	return len;
}

// second: match tags, prefetch the record.
INLINE void second(struct worker *w, struct packet *k, const bool v6) {
	const struct bucket *b = &w->t.buckets[k->home];
	uint32_t m = candidates(b, (uint8_t)k->hash) & (uint32_t)b->ctl;
	k->slot = m ? b->slots[__builtin_ctz(m)] : 0;
	const struct record *r = record_at(&w->t, k->slot & 0x7fffffff, v6);
	__builtin_prefetch(r, 0, 3);
	if (v6)
		__builtin_prefetch((const uint8_t *)r + 64, 0, 3);
}

// observe updates last seen, at most once a second.
INLINE void observe(struct worker *w, struct record *r, uint64_t m) {
	if ((int32_t)(w->now - (uint32_t)m) >= REFRESH_TICKS)
		__atomic_compare_exchange_n(&r->meta, &m, (m & ~0xffffffffull) | w->now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

// rewrite gives the packet the reverse of the other side's tuple, one TTL less, and both checksums
// adjusted by their differences (RFC 1624 equation 3).
INLINE void rewrite(struct packet *k, const struct record *r, uint32_t side, const struct hop *h, const bool v6) {
	uint8_t *p = k->p, *ip = p + ETH, *l4 = ip + (v6 ? IPV6 : IPV4);
	uint16_t flip = (uint16_t)-(int)side; // the reverse direction is the complement
	uint32_t other = side ^ 1, sum;
	memcpy(p, h->mac, 12);
	if (v6) {
		const uint64_t *a = ((const struct record6 *)r)->addr[other];
		uint64_t out[4] = {a[2], a[3], a[0], a[1]};
		store16(p + 12, 0xdd86);
		memcpy(ip + 8, out, 32);
		ip[7]--;
	} else {
		store16(p + 12, 0x0008);
		store64(ip + 12, rotate32(((const struct record4 *)r)->addr[other]));
		ip[8]--;
		sum = (uint16_t)~load16(ip + 10) + (uint32_t)(uint16_t)(r->delta_ip ^ flip) + 0xfffe;
		sum = (sum >> 16) + (uint16_t)sum;
		store16(ip + 10, (uint16_t)~((sum >> 16) + sum));
	}
	store32(l4, rotate16(r->ports[other]));
	uint8_t *field = l4 + (k->proto == TCP ? 16 : 6);
	uint16_t old = load16(field);
	sum = (uint16_t)~old + (uint32_t)(uint16_t)(r->delta_l4 ^ flip);
	uint16_t new = (uint16_t)~((sum >> 16) + sum);
	bool udp = k->proto == UDP;
	new = (udp & (new == 0)) ? 0xffff : new;
	store16(field, (udp & (old == 0)) ? 0 : new); // RFC 768
}

// third: compare, classify, rewrite, send. It returns the number of bytes sent.
INLINE uint32_t third(struct worker *w, struct packet *k, const bool v6) {
	uint64_t a[4];
	if (unlikely(!k->p))
		return 0;
	address_of(k, a, v6);
	uint32_t slot = k->slot;
	struct record *r = record_at(&w->t, slot & 0x7fffffff, v6);
	if (unlikely(!same_key(&w->t, slot, a, k->ports, v6) | ((uint8_t)(r->meta >> 48) != k->proto))) {
		slot = search(&w->t, k->hash, a, k->ports, k->proto, v6);
		r = record_at(&w->t, slot & 0x7fffffff, v6);
	}
	uint64_t m = r->meta;
	uint32_t side = slot >> 31, backend = (uint32_t)r->owner, index = backend & ((1u << BACKEND_BITS) - 1);
	const struct hop *h = &w->hops[(uint16_t)(r->bound >> (side ? 0 : 16))];
	const struct backend *b = &w->backends[index];
	bool gone = (k->proto == UDP) & ((b->ref != backend) | (!side & !(b->flags & BACKEND_SERVING)));
	if (unlikely((slot == 0) | ((int32_t)(w->now - (uint32_t)m) > w->t.life[m >> 32 & 63]) | ((k->flags & FIN_SYN_RST) != 0) | gone |
		     ((uint32_t)(r->bound >> 32) != w->generation) | !h->ready | (k->bytes > h->mtu))) {
		drop(w, k); // the gateway's further handling is not measured
		return 0;
	}
	struct counter *c = &w->counters[index];
	c->packets[side]++;
	c->bytes[side] += (uint32_t)ETH + k->bytes;
	rewrite(k, r, side, h, v6);
	observe(w, r, m);
	// Padding is removed.
	w->tx.at[w->sending++ % RING] = (struct desc){(uint64_t)(k->p - w->umem), (uint32_t)ETH + k->bytes, 0};
	return (uint32_t)ETH + k->bytes;
}

// received is the step's i-th packet in the ring.
INLINE const struct desc *received(const struct worker *w, uint32_t i) { return &w->rx.at[(w->tail + i) % RING]; }

// headers prefetches a packet's headers for writing.
INLINE void headers(struct worker *w, uint32_t i, uint32_t n, const bool v6) {
	if (i >= n)
		return;
	const uint8_t *p = w->umem + received(w, i)->addr;
	__builtin_prefetch(p, 1, 3);
	if (v6)
		__builtin_prefetch(p + 64, 1, 3);
}

// pipelined works on the headers of group g while the buckets of g-1 and the records of g-2 are
// being loaded; it prefetches the headers of g+1 one by one in between. It prefetches the records
// of a group last, not right behind the buckets of another, and IPv6 records, which are two lines
// each, in halves: the processor drops prefetches if too many misses are outstanding.
INLINE void pipelined(struct worker *w, uint32_t n, const bool v6) {
	uint32_t groups = (n + GROUP - 1) / GROUP;
	const uint32_t stride = v6 ? GROUP / 2 : GROUP;
	uint64_t in = 0, out = 0;
	for (uint32_t i = 0; i < GROUP; i++)
		headers(w, i, n, v6);
	for (uint32_t g = 0; g < groups + 2; g++) {
		if (g < groups)
			for (uint32_t i = g * GROUP; i < (g + 1) * GROUP && i < n; i++) {
				headers(w, i + GROUP, n, v6);
				in += first(w, &w->pkt[i], received(w, i), v6);
			}
		for (uint32_t part = 0; part < GROUP; part += stride) {
			if (g >= 2)
				for (uint32_t i = (g - 2) * GROUP + part, end = i + stride; i < end && i < n; i++)
					out += third(w, &w->pkt[i], v6);
			if (g - 1 < groups)
				for (uint32_t i = (g - 1) * GROUP + part, end = i + stride; i < end && i < n; i++)
					second(w, &w->pkt[i], v6);
		}
	}
	w->n.rx_bytes += in;
	w->n.tx_bytes += out;
}

INLINE void serial(struct worker *w, uint32_t n, const bool v6) {
	for (uint32_t i = 0; i < n; i++) {
		w->n.rx_bytes += first(w, &w->pkt[i], received(w, i), v6);
		second(w, &w->pkt[i], v6);
		w->n.tx_bytes += third(w, &w->pkt[i], v6);
	}
}

static void publish(struct worker *w, uint64_t now) {
	w->out.rx = w->n.rx;
	w->out.rx_bytes = w->n.rx_bytes;
	w->out.tx = w->n.tx;
	w->out.tx_bytes = w->n.tx_bytes;
	w->out.drops = w->n.drops;
	w->out.tick = now;
	w->out.generation = w->generation;
	w->out.frames_free = w->free;
	w->out.frames_links = w->rx.head - w->rx.tail + w->tx.head - w->tx.tail + w->fill.head - w->fill.tail + w->done.head - w->done.tail;
}

static void reclaim(struct worker *w) {
	for (; w->done.tail != w->done.head; w->done.tail++)
		w->pool[w->free++] = w->done.at[w->done.tail % RING] & ~(uint64_t)(FRAME - 1);
	while (w->free && w->fill.head - w->fill.tail < RING)
		w->fill.at[w->fill.head++ % RING] = w->pool[--w->free];
}

static void expire(struct worker *w, uint64_t now, bool v6) {
	uint64_t elapsed = now - w->last_sweep;
	if (elapsed < 1000000)
		return;
	w->last_sweep = now;
	sweep(&w->t, (uint32_t)((uint64_t)w->t.records * elapsed / 5000000000u) + 1, w->now, v6);
}

// step is one pass: receive, process, transmit, reclaim, expire, publish. It returns how many
// packets it received.
INLINE uint32_t step(struct worker *w, uint64_t now, const bool v6, const bool one_by_one) {
	w->now = (uint32_t)(now / TICK_NANOS);
	uint32_t n = w->rx.head - w->rx.tail;
	n = n < BURST ? n : BURST;
	w->n.rx += n;
	w->tail = w->rx.tail;
	w->sending = w->tx.head;
	if (one_by_one)
		serial(w, n, v6);
	else
		pipelined(w, n, v6);
	w->rx.tail += n;
	w->n.tx += w->sending - w->tx.head;
	w->tx.head = w->sending;
	reclaim(w);
	expire(w, now, v6);
	publish(w, now);
	return n;
}
