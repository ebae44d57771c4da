// The worker's flows, their packets, and the check of the packets that it sends.
#pragma once
#include "worker.h"

enum { NODES = 64, SNATS = 4, CLIENT_PORTS = 50000, FIRST_PORT = 1024, FIRST_SNAT_PORT = 2000, SNAT_PORTS = 60000 };
enum { HOP_CLIENT = 1, HOP_FIRST_NODE = 2, GENERATION = 7, MTU = 1500, TTL = 64 };

// facts are a flow in wire form: per side, source then destination, 4 or 16 bytes each.
struct facts {
	uint8_t addr[2][32];
	uint32_t ports[2];
	uint32_t backend; // index
	uint16_t hop;	  // towards the backend
	uint8_t proto;
};

// flow holds the fields from which facts are derived.
struct flow {
	uint32_t client, pod;
	uint16_t client_port, snat_port;
	uint8_t snat, proto;
};

static uint32_t wire_ports(uint16_t src, uint16_t dst) {
	return (uint32_t)__builtin_bswap16(src) | (uint32_t)__builtin_bswap16(dst) << 16;
}

static void put32(uint8_t *p, uint32_t v) { store32(p, __builtin_bswap32(v)); }

// address writes the address with net and host in 2001:db8::/32, or base + host.
static void address(uint8_t *p, bool v6, uint32_t base, uint32_t net, uint32_t host) {
	if (!v6) {
		put32(p, base + host);
		return;
	}
	put32(p, 0x20010db8);
	put32(p + 4, net);
	put32(p + 8, 0);
	put32(p + 12, host + 1);
}

static void facts_of(struct facts *f, const struct flow *l, uint32_t pods, bool v6) {
	size_t n = v6 ? 16 : 4;
	memset(f, 0, sizeof *f);
	address(f->addr[0], v6, 0, 0xc0000, l->client);
	address(f->addr[0] + n, v6, 0xc6120000, 0xf0000, 0);
	address(f->addr[1], v6, 10u << 24 | (l->pod % NODES) << 16, 0x10000 | l->pod % NODES, l->pod / NODES);
	address(f->addr[1] + n, v6, 0xc0000202, 0x20000, l->snat);
	f->ports[0] = wire_ports(l->client_port, 80);
	f->ports[1] = wire_ports(8080, l->snat_port);
	f->backend = 1 + l->pod + (l->proto == UDP ? pods : 0);
	f->hop = (uint16_t)(HOP_FIRST_NODE + l->pod % NODES);
	f->proto = l->proto;
}

static void key_of(const struct facts *f, uint32_t side, uint64_t *a, bool v6) { memcpy(a, f->addr[side], v6 ? 32 : 8); }

// sums of one side's addresses and ports, for the deltas.
static uint16_t addr_sum(const struct facts *f, uint32_t side, bool v6) { return sum_bytes(f->addr[side], v6 ? 32 : 8); }
static uint16_t port_sum(uint32_t ports) { return fold(ports); }

// add makes the record and both keys; false if there is no room.
static bool add(struct worker *w, const struct facts *f, bool v6) {
	struct table *t = &w->t;
	if (t->used >= t->records)
		return false;
	uint32_t i = t->used++;
	struct record *r = record_at(t, i, v6);
	uint64_t a[4];
	r->meta = (uint64_t)f->proto << 48 | (uint64_t)(f->proto == TCP ? STATE_ESTABLISHED : STATE_UDP_ASSURED) << 32 | w->now;
	r->bound = (uint64_t)w->generation << 32 | (uint64_t)f->hop << 16 | HOP_CLIENT;
	r->owner = 1ull << 32 | 1u << BACKEND_BITS | f->backend;
	r->delta_ip = fold((uint64_t)(uint16_t)~addr_sum(f, 0, v6) + addr_sum(f, 1, v6));
	r->delta_l4 = fold((uint64_t)r->delta_ip + (uint16_t)~port_sum(f->ports[0]) + port_sum(f->ports[1]));
	for (uint32_t side = 0; side < 2; side++) {
		r->ports[side] = f->ports[side];
		key_of(f, side, a, v6);
		if (v6)
			memcpy(t->six[i].addr[side], a, 32);
		else
			t->four[i].addr[side] = a[0];
		uint64_t h = hash_key(t, a, f->ports[side], f->proto, v6);
		if (search(t, h, a, f->ports[side], f->proto, v6) || !insert(t, h, side << 31 | i))
			return false;
	}
	w->backends[f->backend] = (struct backend){1u << BACKEND_BITS | f->backend, BACKEND_SERVING};
	return true;
}

static uint32_t l4_bytes(uint8_t proto, bool v6) { return proto == TCP ? 20 : v6 ? 20 : 26; }

static uint16_t pseudo(const uint8_t *addrs, bool v6, uint8_t proto, uint32_t bytes) {
	return fold((uint64_t)sum_bytes(addrs, v6 ? 32 : 8) + (uint64_t)__builtin_bswap16(proto) + __builtin_bswap16((uint16_t)bytes));
}

// build writes a packet of one side, with a tag in the sequence number or the datagram.
static uint32_t build(uint8_t *p, const struct facts *f, uint32_t side, uint32_t tag, bool v6) {
	static const uint8_t macs[12] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1};
	uint32_t n = l4_bytes(f->proto, v6), header = v6 ? IPV6 : IPV4;
	uint8_t *ip = p + ETH, *l4 = ip + header;
	memset(p, 0, 128);
	memcpy(p, macs, 12);
	if (v6) {
		store16(p + 12, 0xdd86);
		ip[0] = 0x60, ip[6] = f->proto, ip[7] = TTL;
		store16(ip + 4, __builtin_bswap16((uint16_t)n));
		memcpy(ip + 8, f->addr[side], 32);
	} else {
		store16(p + 12, 0x0008);
		ip[0] = 0x45, ip[6] = 0x40, ip[8] = TTL, ip[9] = f->proto;
		store16(ip + 2, __builtin_bswap16((uint16_t)(IPV4 + n)));
		memcpy(ip + 12, f->addr[side], 8);
		store16(ip + 10, (uint16_t)~sum_bytes(ip, IPV4));
	}
	store32(l4, f->ports[side]);
	uint8_t *field = l4 + 6;
	if (f->proto == TCP) {
		store32(l4 + 4, tag);
		l4[12] = 5 << 4, l4[13] = ACK;
		field = l4 + 16;
	} else {
		store16(l4 + 4, __builtin_bswap16((uint16_t)n));
		store32(l4 + 8, tag);
	}
	uint16_t sum = (uint16_t)~fold((uint64_t)sum_bytes(l4, n) + pseudo(f->addr[side], v6, f->proto, n));
	store16(field, f->proto == UDP && !sum ? 0xffff : sum);
	return ETH + header + n < 60 ? 60 : ETH + header + n;
}

// check returns what is wrong with a sent packet of the flow that came from side, or NULL.
static const char *check(const struct worker *w, const uint8_t *p, uint32_t len, const struct facts *f, uint32_t side, bool v6) {
	const uint8_t *ip = p + ETH, *l4 = ip + (v6 ? IPV6 : IPV4), *addr = ip + (v6 ? 8 : 12);
	uint32_t n = l4_bytes(f->proto, v6);
	size_t a = v6 ? 16 : 4;
	const struct hop *h = &w->hops[side ? HOP_CLIENT : f->hop];
	if (len != (uint32_t)(l4 - p) + n)
		return "length";
	if (memcmp(p, h->mac, 12))
		return "MAC addresses";
	if (memcmp(addr, f->addr[side ^ 1] + a, a) || memcmp(addr + a, f->addr[side ^ 1], a))
		return "addresses";
	if (load32(l4) != rotate16(f->ports[side ^ 1]))
		return "ports";
	if ((v6 ? ip[7] : ip[8]) != TTL - 1)
		return "TTL";
	if (!v6 && sum_bytes(ip, IPV4) != 0xffff)
		return "IPv4 checksum";
	if (fold((uint64_t)sum_bytes(l4, n) + pseudo(addr, v6, f->proto, n)) != 0xffff)
		return "TCP or UDP checksum";
	return NULL;
}
