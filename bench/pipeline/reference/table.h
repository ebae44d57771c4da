// The flow table of the gateway: buckets of one cache line with 11 tags and slots, one record for
// both directions of a flow. Addresses and ports are in wire order, because this code does no
// arithmetic with them.
#pragma once
#include "base.h"

enum { BUCKET_SLOTS = 11, CHAIN = 4, KEYS_PER_BUCKET = 5 };
enum { STATE_ESTABLISHED = 4, STATE_UDP_ASSURED = 14 };
enum { TICK_NANOS = 100000000, REFRESH_TICKS = 10 };

struct bucket {
	uint64_t ctl; // 44 member bits of the chain of four, 20 of version
	uint8_t tags[BUCKET_SLOTS], unused;
	uint32_t slots[BUCKET_SLOTS]; // side << 31 | record
};

// record is the part common to both families, 48 bytes; the addresses follow.
struct record {
	uint64_t meta;  // proto << 48 | state << 32 | last seen, ticks
	uint64_t bound; // generation << 32 | hop to backend << 16 | hop to client
	uint64_t owner; // service << 32 | backend
	uint16_t delta_ip, delta_l4;
	uint32_t created, sum, next;
	uint32_t ports[2]; // by side, as on the wire: source in the low half
};

struct record4 {
	struct record r;
	uint64_t addr[2]; // by side, as on the wire: source in the low half
};

struct record6 {
	struct record r;
	uint64_t addr[2][4];
	uint64_t unused[2];
};

_Static_assert(sizeof(struct bucket) == 64, "a bucket is a line");
_Static_assert(sizeof(struct record4) == 64, "an IPv4 record is a line");
_Static_assert(sizeof(struct record6) == 128, "an IPv6 record is two");

struct table {
	struct bucket *buckets;
	union {
		struct record4 *four;
		struct record6 *six;
	};
	uint64_t homes;
	uint32_t records, used; // record 0 is none
	uint32_t swept;
	uint64_t secret[6];
	int32_t life[64]; // ticks, by state
	uint64_t expired;
};

INLINE struct record *record_at(const struct table *t, uint32_t i, const bool v6) {
	return v6 ? &t->six[i].r : &t->four[i].r;
}

INLINE uint64_t mix(uint64_t a, uint64_t b, uint64_t *high) {
	unsigned __int128 m = (unsigned __int128)a * b;
	*high = (uint64_t)(m >> 64);
	return (uint64_t)m;
}

// The keyed hash: two multiplications for IPv4, four for IPv6; no bits are lost before the last
// fold.
INLINE uint64_t hash_key(const struct table *t, const uint64_t *addr, uint32_t ports, uint8_t proto, const bool v6) {
	const uint64_t *s = t->secret;
	uint64_t hi, lo, h1, l1, h2, l2, tail = (uint64_t)ports << 8 | proto;
	if (!v6) {
		lo = mix(addr[0] ^ s[0], tail ^ s[1], &hi);
		lo = mix(lo ^ s[2], hi ^ s[3], &hi);
		return hi ^ lo;
	}
	l1 = mix(addr[0] ^ s[0], addr[1] ^ s[1], &h1);
	l2 = mix(addr[2] ^ s[2], addr[3] ^ s[3], &h2);
	lo = mix(h1 ^ l2 ^ s[4], l1 ^ h2 ^ s[5] ^ tail, &hi);
	lo = mix(lo ^ s[1], hi ^ s[0], &hi);
	return hi ^ lo;
}

INLINE uint64_t home_of(const struct table *t, uint64_t hash) { return (hash >> 32) * t->homes >> 32; }

// candidates are the slots of a bucket whose tag equals the hash's.
INLINE uint32_t candidates(const struct bucket *b, uint8_t tag) {
#ifdef __SSE2__
	__m128i tags = _mm_loadu_si128((const __m128i *)b->tags);
	return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag))) & 0x7ff;
#else
	uint32_t m = 0;
	for (int i = 0; i < BUCKET_SLOTS; i++)
		m |= (uint32_t)(b->tags[i] == tag) << i;
	return m;
#endif
}

INLINE bool same_key(const struct table *t, uint32_t slot, const uint64_t *addr, uint32_t ports, const bool v6) {
	uint32_t i = slot & 0x7fffffff, side = slot >> 31;
	if (!v6)
		return (t->four[i].addr[side] == addr[0]) & (t->four[i].r.ports[side] == ports);
	const uint64_t *a = t->six[i].addr[side];
	return (((a[0] ^ addr[0]) | (a[1] ^ addr[1]) | (a[2] ^ addr[2]) | (a[3] ^ addr[3])) == 0) & (t->six[i].r.ports[side] == ports);
}

// search goes through the whole chain if the first candidate did not match. 0: not found.
static __attribute__((noinline)) uint32_t search(const struct table *t, uint64_t hash, const uint64_t *addr, uint32_t ports, uint8_t proto, bool v6) {
	uint64_t home = home_of(t, hash);
	uint64_t members = t->buckets[home].ctl & ((1ull << BUCKET_SLOTS * CHAIN) - 1);
	for (const struct bucket *b = &t->buckets[home]; members; b++, members >>= BUCKET_SLOTS)
		for (uint32_t m = candidates(b, (uint8_t)hash) & members & 0x7ff; m; m &= m - 1) {
			uint32_t slot = b->slots[__builtin_ctz(m)];
			uint64_t meta = record_at(t, slot & 0x7fffffff, v6)->meta;
			if ((uint8_t)(meta >> 48) == proto && (meta >> 32 & 15) && same_key(t, slot, addr, ports, v6))
				return slot;
		}
	return 0;
}

// insert adds a key; false if its chain is full.
static bool insert(struct table *t, uint64_t hash, uint32_t slot) {
	struct bucket *home = &t->buckets[home_of(t, hash)];
	for (int c = 0; c < CHAIN; c++)
		for (int i = 0; i < BUCKET_SLOTS; i++)
			if (!home[c].slots[i]) {
				home[c].slots[i] = slot;
				home[c].tags[i] = (uint8_t)hash;
				home->ctl += (1ull << BUCKET_SLOTS * CHAIN) | 1ull << (c * BUCKET_SLOTS + i);
				return true;
			}
	return false;
}

static void table_init(struct table *t, uint32_t flows, bool v6) {
	t->records = flows + flows / 32 + 1;
	t->used = 1;
	t->swept = 1;
	t->homes = (2ull * flows + KEYS_PER_BUCKET - 1) / KEYS_PER_BUCKET;
	size_t record = v6 ? sizeof(struct record6) : sizeof(struct record4);
	t->four = huge(record * ((size_t)t->records + 1));
	t->buckets = huge(sizeof(struct bucket) * (size_t)(t->homes + CHAIN - 1));
	for (int i = 0; i < 6; i++)
		t->secret[i] = draw();
	for (int i = 0; i < 64; i++)
		t->life[i] = INT32_MIN;
	t->life[STATE_ESTABLISHED] = 74400 + REFRESH_TICKS;
	t->life[STATE_UDP_ASSURED] = 3000 + REFRESH_TICKS;
}

// sweep visits n records and counts expired ones (here none ever expires).
static void sweep(struct table *t, uint32_t n, uint32_t now, bool v6) {
	for (; n; n--) {
		uint64_t m = record_at(t, t->swept, v6)->meta;
		t->expired += (m >> 32 & 15) && (int32_t)(now - (uint32_t)m) > t->life[m >> 32 & 63];
		if (++t->swept >= t->used)
			t->swept = 1;
	}
}
