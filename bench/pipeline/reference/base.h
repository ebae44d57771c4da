// Common parts of the reference: words, memory, time.
#pragma once
#define _GNU_SOURCE
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the reference reads packets on little-endian machines only"
#endif

INLINE uint16_t load16(const void *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
INLINE uint32_t load32(const void *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
INLINE uint64_t load64(const void *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }
INLINE void store16(void *p, uint16_t v) { memcpy(p, &v, sizeof v); }
INLINE void store32(void *p, uint32_t v) { memcpy(p, &v, sizeof v); }
INLINE void store64(void *p, uint64_t v) { memcpy(p, &v, sizeof v); }
INLINE uint64_t rotate32(uint64_t v) { return v << 32 | v >> 32; }
INLINE uint32_t rotate16(uint32_t v) { return v << 16 | v >> 16; }

// Ones-complement sums (RFC 1071) do not depend on the byte order, as long as it is the same
// everywhere: all words here are in memory order.
INLINE uint16_t fold(uint64_t s) {
	s = (s >> 32) + (uint32_t)s;
	s = (s >> 32) + (uint32_t)s;
	uint32_t t = (uint32_t)(s >> 16) + (uint16_t)s;
	t = (t >> 16) + (uint16_t)t;
	return (uint16_t)t;
}

INLINE uint64_t add_carry(uint64_t a, uint64_t b) {
	uint64_t s = a + b;
	return s + (s < a);
}

static uint16_t sum_bytes(const uint8_t *p, size_t n) {
	uint64_t s = 0;
	for (; n >= 2; p += 2, n -= 2)
		s += load16(p);
	if (n)
		s += *p;
	return fold(s);
}

static uint64_t nanos(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// huge returns zeroed, touched memory, on huge pages if the kernel provides them.
static void *huge(size_t bytes) {
	const size_t page = 2u << 20;
	bytes = (bytes + page - 1) & ~(page - 1);
	uint8_t *m = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) {
		perror("reference: mmap");
		exit(1);
	}
	m = (uint8_t *)(((uintptr_t)m + page - 1) & ~(uintptr_t)(page - 1));
	madvise(m, bytes, MADV_HUGEPAGE); // small pages work as well, only slower
	for (size_t i = 0; i < bytes; i += 4096)
		((volatile uint8_t *)m)[i] = 0;
	return m;
}

static uint64_t seed = 0x9e3779b97f4a7c15u;

// draw is xorshift64*: for tests, not for secrets.
static uint64_t draw(void) {
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * 0x2545f4914f6cdd1du;
}

INLINE uint32_t below(uint32_t n) { return (uint32_t)((draw() >> 32) * n >> 32); }
