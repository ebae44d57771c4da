// The reference of `sluice-bench pipeline`: the gateway's processing of a packet of a known flow,
// in C, as fast as possible. It is a test program and is never installed.
//
//	reference -family 4|6 -flows N -backends B -capacity C -cpu N
//
// It makes its flows, checks every byte of a few chunks of the packets that it sends, and prints
// "ready". Then it executes commands from its input, one per line:
//
//	sample hot|cold clients|both CHUNKS pipelined|serial   prints "ns X", the median of chunks
//	flow PROTO HOP CLIENT CPORT VIP VPORT POD PPORT SNAT SPORT   adds a flow; addresses in hex; prints "ok"
//	packet HEX                              prints "sent HEX" or "dropped"
#include "flows.h"

static struct worker *w;
static bool v6;
static struct flow *flows;
static uint32_t flow_count, pods, capacity;
static uint64_t virtual_now = 3600ull * 1000000000u;
static uint32_t tag_flow[RING]; // the injected packets, by tag: side << 31 | flow

static void fail(const char *what) {
	fprintf(stderr, "reference: %s\n", what);
	exit(1);
}

static void init(void) {
	w = huge(sizeof *w);
	w->umem = huge((size_t)FRAMES * FRAME);
	w->backends = huge((2 * (size_t)pods + 2) * sizeof *w->backends);
	w->counters = huge((2 * (size_t)pods + 2) * sizeof *w->counters);
	w->generation = GENERATION;
	w->now = (uint32_t)(virtual_now / TICK_NANOS);
	w->last_sweep = virtual_now;
	table_init(&w->t, capacity, v6);
	for (uint32_t i = 0; i < NODES + 1; i++) {
		struct hop *h = &w->hops[HOP_CLIENT + i];
		uint8_t mac[12] = {2, 0, 0, 0, 2, (uint8_t)(i - 1), 2, 0, 0, 0, 0, 1};
		if (i == 0)
			mac[4] = 1, mac[5] = 1;
		memcpy(h->mac, mac, 12);
		h->mtu = MTU;
		h->ready = true;
	}
	for (uint32_t i = FRAMES; i-- > 0;)
		w->pool[w->free++] = (uint64_t)i * FRAME;
	reclaim(w);
}

// populate makes the flows: consecutive clients; backend, source and protocol at random.
static void populate(void) {
	uint32_t spaces = pods * SNATS * 2;
	uint16_t *used = calloc(spaces, sizeof *used);
	flows = huge(sizeof *flows * ((size_t)flow_count + 1));
	if (!used)
		fail("no memory");
	for (uint32_t i = 0; i < flow_count; i++) {
		struct flow *l = &flows[i];
		l->client = (v6 ? 0 : 0x65000000u) + i / CLIENT_PORTS;
		l->client_port = (uint16_t)(FIRST_PORT + i % CLIENT_PORTS);
		l->proto = draw() >> 63 ? TCP : UDP;
		l->pod = below(pods);
		l->snat = (uint8_t)below(SNATS);
		uint16_t *next = &used[(l->pod * SNATS + l->snat) * 2 + (l->proto == UDP)];
		l->snat_port = (uint16_t)(FIRST_SNAT_PORT + (uint32_t)(*next)++ * 7919u % SNAT_PORTS);
		struct facts f;
		facts_of(&f, l, pods, v6);
		if (*next > SNAT_PORTS || !add(w, &f, v6))
			fail("a flow found no room: more backends or more capacity are needed");
	}
	free(used);
}

// inject writes a packet into a frame of the fill ring.
static void inject(const uint8_t *p, uint32_t len) {
	if (w->fill.head == w->fill.tail)
		fail("no frames to receive into");
	uint64_t at = w->fill.at[w->fill.tail++ % RING] + HEADROOM;
	memcpy(w->umem + at, p, len);
	w->rx.at[w->rx.head++ % RING] = (struct desc){at, len, 0};
}

static void inject_random(bool both) {
	uint8_t p[128];
	struct facts f;
	for (uint32_t tag = 0; tag < RING; tag++) {
		uint32_t i = below(flow_count), side = both ? (uint32_t)(draw() >> 63) : 0;
		tag_flow[tag] = side << 31 | i;
		facts_of(&f, &flows[i], pods, v6);
		uint32_t n = build(p, &f, side, tag, v6);
		inject(p, n);
	}
}

static void flush_headers(void) {
#ifdef __SSE2__
	_mm_mfence();
	for (uint32_t i = 0; i < FRAMES; i++)
		for (uint32_t line = 0; line < 128; line += 64)
			_mm_clflush(w->umem + (size_t)i * FRAME + HEADROOM + line);
	_mm_mfence();
#else
	fail("headers cannot be made cold on this processor");
#endif
}

// kernel completes the sent frames.
static uint32_t kernel(void) {
	uint32_t n = 0;
	for (; w->tx.tail != w->tx.head; w->tx.tail++, n++)
		w->done.at[w->done.head++ % RING] = w->tx.at[w->tx.tail % RING].addr;
	return n;
}

// One loop for each family, so that the family is a compile-time constant in it.
#define CHUNK(name, family, one_by_one)                                    \
	static __attribute__((noinline)) uint64_t name(void) {             \
		uint64_t began = nanos(), spent;                           \
		while (w->rx.tail != w->rx.head)                           \
			step(w, virtual_now + (nanos() - began), family, one_by_one); \
		spent = nanos() - began;                                   \
		kernel();                                                  \
		began = nanos();                                           \
		step(w, virtual_now + spent, family, one_by_one);          \
		return spent + (nanos() - began);                          \
	}
CHUNK(chunk4, false, false)
CHUNK(chunk6, true, false)
CHUNK(chunk4_serial, false, true)
CHUNK(chunk6_serial, true, true)

static uint64_t chunk(bool one_by_one) {
	uint64_t before = w->n.tx, spent;
	if (one_by_one)
		spent = v6 ? chunk6_serial() : chunk4_serial();
	else
		spent = v6 ? chunk6() : chunk4();
	virtual_now += spent;
	if (w->n.tx - before != RING)
		fail("packets were dropped");
	return spent;
}

static void self_check(bool one_by_one) {
	inject_random(true);
	uint64_t before = w->n.tx;
	while (w->rx.tail != w->rx.head) {
		if (v6)
			step(w, virtual_now, true, one_by_one);
		else
			step(w, virtual_now, false, one_by_one);
	}
	if (w->n.tx - before != RING)
		fail("self-check: packets were dropped");
	for (uint32_t i = w->tx.tail; i != w->tx.head; i++) {
		const struct desc *d = &w->tx.at[i % RING];
		const uint8_t *p = w->umem + d->addr, *l4 = p + ETH + (v6 ? IPV6 : IPV4);
		uint8_t proto = v6 ? p[ETH + 6] : p[ETH + 9];
		uint32_t tag = load32(l4 + (proto == TCP ? 4 : 8));
		if (tag >= RING)
			fail("self-check: a packet that nobody sent");
		struct facts f;
		facts_of(&f, &flows[tag_flow[tag] & 0x7fffffff], pods, v6);
		const char *wrong = check(w, p, d->len, &f, tag_flow[tag] >> 31, v6);
		if (wrong) {
			fprintf(stderr, "reference: self-check: wrong %s\n", wrong);
			exit(1);
		}
	}
	kernel();
	reclaim(w);
}

static int by_value(const void *a, const void *b) {
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void sample(bool cold, bool both, uint32_t chunks, bool one_by_one) {
	uint32_t warm = chunks / 10 + 2;
	uint64_t *each = calloc(chunks, sizeof *each);
	if (!each)
		fail("no memory");
	for (uint32_t i = 0; i < chunks + warm; i++) {
		inject_random(both);
		if (cold)
			flush_headers();
		uint64_t spent = chunk(one_by_one);
		if (i >= warm)
			each[i - warm] = spent;
	}
	qsort(each, chunks, sizeof *each, by_value);
	printf("ns %.3f\n", (double)each[chunks / 2] / RING);
	free(each);
}

static uint32_t unhex(uint8_t *out, const char *s, uint32_t max) {
	uint32_t n = 0;
	for (unsigned byte; n < max && sscanf(s + 2 * n, "%2x", &byte) == 1; n++)
		out[n] = (uint8_t)byte;
	return n;
}

static bool read_flow(const char *line) {
	char hex[4][33];
	unsigned proto, hop, port[4];
	struct facts f = {0};
	size_t n = v6 ? 16 : 4;
	if (sscanf(line, "flow %u %u %32s %u %32s %u %32s %u %32s %u", &proto, &hop, hex[0], &port[0], hex[1], &port[1], hex[2], &port[2], hex[3], &port[3]) != 10)
		return false;
	for (int i = 0; i < 4; i++)
		if (unhex(f.addr[i / 2] + (i % 2) * n, hex[i], 16) != n)
			return false;
	f.ports[0] = wire_ports((uint16_t)port[0], (uint16_t)port[1]);
	f.ports[1] = wire_ports((uint16_t)port[2], (uint16_t)port[3]);
	f.proto = (uint8_t)proto;
	f.hop = (uint16_t)hop;
	f.backend = 1;
	return add(w, &f, v6);
}

// one_packet forwards one packet, and prints the outcome.
static void one_packet(const char *hex) {
	uint8_t p[FRAME - HEADROOM];
	inject(p, unhex(p, hex, sizeof p));
	uint64_t before = w->n.tx;
	if (v6)
		step(w, virtual_now, true, false);
	else
		step(w, virtual_now, false, false);
	if (w->n.tx == before) {
		puts("dropped");
		return;
	}
	const struct desc *d = &w->tx.at[w->tx.tail % RING];
	printf("sent ");
	for (uint32_t i = 0; i < d->len; i++)
		printf("%02x", w->umem[d->addr + i]);
	puts("");
	kernel();
	reclaim(w);
}

static void command(const char *line) {
	char headers[8], packets[8], how[16];
	unsigned chunks;
	if (sscanf(line, "sample %7s %7s %u %15s", headers, packets, &chunks, how) == 4 && flow_count && chunks)
		sample(!strcmp(headers, "cold"), !strcmp(packets, "both"), chunks, !strcmp(how, "serial"));
	else if (!strncmp(line, "flow ", 5) && read_flow(line))
		puts("ok");
	else if (!strncmp(line, "packet ", 7))
		one_packet(line + 7);
	else
		fail("a line that is no command, or that cannot be done");
}

int main(int argc, char **argv) {
	int cpu = -1;
	pods = 1;
	for (int i = 1; i + 1 < argc; i += 2) {
		long v = atol(argv[i + 1]);
		if (!strcmp(argv[i], "-family"))
			v6 = v == 6;
		else if (!strcmp(argv[i], "-flows"))
			flow_count = (uint32_t)v;
		else if (!strcmp(argv[i], "-backends"))
			pods = (uint32_t)v;
		else if (!strcmp(argv[i], "-capacity"))
			capacity = (uint32_t)v;
		else if (!strcmp(argv[i], "-cpu"))
			cpu = (int)v;
		else
			fail("an option that is none");
	}
	cpu_set_t set;
	CPU_ZERO(&set);
	if (cpu >= 0) {
		CPU_SET((size_t)cpu, &set);
		if (sched_setaffinity(0, sizeof set, &set)) {
			perror("reference: pin to the CPU");
			return 1;
		}
	}
	if (capacity < 1)
		fail("-capacity is missing");
	init();
	populate();
	for (int i = 0; flow_count && i < 4; i++)
		self_check(i % 2);
	puts("ready");
	fflush(stdout);
	for (char line[8192]; fgets(line, sizeof line, stdin); fflush(stdout))
		command(line);
	return 0;
}
