package flowtable

import (
	"math/bits"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// Search is the lookup of one packet's flow, in steps, so that the cache misses of many packets
// overlap:
//
//	FetchBuckets  hash the keys of a group, prefetch the bucket lines
//	FetchFlows    match tags, prefetch the flows' lines
//	Match         compare
//
// Between two steps of one group the worker takes steps of other groups. The results of the steps
// before Match are only hints: the index may have changed since.
type Search struct {
	header.Plain // the key; no flow matches a packet that is not plain
	hash         uint64
	slot         uint32 // the first member of the home bucket whose tag matches, or 0
}

// The types and constants of other packages that the assembly needs: it includes go_asm.h, which
// has only the constants and types of this package.
type (
	//lint:ignore U1000 the assembly uses it
	plain header.Plain
	//lint:ignore U1000 the assembly uses it
	rewrite header.Rewrite
)

const (
	//lint:ignore U1000 the assembly uses it
	plainIPv6 = header.PlainIPv6
	//lint:ignore U1000 the assembly uses it
	metaStateShift = conn.MetaStateShift
	//lint:ignore U1000 the assembly uses it
	metaProtoShift = conn.MetaProtoShift
)

// The assembly multiplies by these sizes, and compares all tags of a bucket in one instruction.
const (
	geometryShift = 5
	rewriteShift  = 5
	bucketShift   = 6
	_             = -(unsafe.Sizeof(geometry{}) ^ 1<<geometryShift)
	_             = -(unsafe.Sizeof(header.Rewrite{}) ^ 1<<rewriteShift)
	_             = -(unsafe.Sizeof(bucket{}) ^ 1<<bucketShift)
	_             = -(unsafe.Offsetof(bucket{}.tagsHi) - unsafe.Offsetof(bucket{}.tagsLo) ^ 8)
	_             = -(unsafe.Offsetof(header.Delta{}.L4) - unsafe.Offsetof(header.Delta{}.IP) ^ 2)
)

// geometries has a geometry for IPv4, one for IPv6, and one for packets that are not plain: one
// empty bucket.
type geometries [3]geometry

// geometry has the addresses and sizes of an arena's parts.
type geometry struct {
	buckets    unsafe.Pointer // *bucket
	records    unsafe.Pointer // *record4 or *record6
	homes      uint64
	recordSize uint64 // bytes
}

// emptyBucket is the bucket for packets that are not plain. Match reads it as a record, so it is as
// large as an IPv6 record.
var emptyBucket [2]bucket

// layOut must be called after the arenas have their memory.
func (t *Table) layOut() (g geometries) {
	empty := geometry{unsafe.Pointer(&emptyBucket), unsafe.Pointer(&emptyBucket), 1, 64}
	for i := range g {
		if g[i] = empty; i == header.NotPlain {
			continue
		}
		a := &t.arenas[i]
		// Safety: the assembly adds a home below homes to buckets, and a record number that
		// it read from a slot to records, whose line it prefetches and does not read.
		if g[i] = (geometry{unsafe.Pointer(&a.buckets[0]), nil, a.homes, 64}); a.v6 {
			g[i].records, g[i].recordSize = unsafe.Pointer(&a.six[0]), 128
		} else {
			g[i].records = unsafe.Pointer(&a.four[0])
		}
	}
	return g
}

// FetchBuckets does the first step for a group of packets.
func (h *Handle) FetchBuckets(group []Search) { fetchBuckets(&h.t.geometry, h.secret, group) }

// FetchFlows does the second step.
func (h *Handle) FetchFlows(group []Search) { fetchFlows(&h.t.geometry, group) }

// find returns the slot value of the first member of the home whose tag matches, or 0. Rarely, it
// returns a member whose tag does not match.
func (b *bucket) find(tag uint8) uint32 {
	m := b.candidates(tag) & b.ctl.Load() & slotMask
	if m == 0 {
		return 0
	}
	return b.slots[bits.TrailingZeros64(m)].Load()
}

// Match does the last step for a group of packets, which must be TCP (with ACK, and without SYN,
// FIN and RST) or UDP. It stops at the first packet that has no flow, or that would change its flow
// by more than Seen does. It stores the flows of the packets before that one, and their rewrites
// without the MAC addresses, and returns the number of these packets. For the packet at which it
// stopped, call More, or Lookup and Observe. flows and rewrites must be at least as long as the
// group.
func (h *Handle) Match(group []Search, flows []*Flow, rewrites []header.Rewrite, now Ticks) int {
	return match(&h.t.geometry, group, flows[:len(group)], rewrites[:len(group)], h.steady, uint32(now))
}

// Side returns the side of the flow on which a matched packet arrived.
func (s *Search) Side() Side { return slotSideOf(s.slot) }

// Ref returns the flow that a packet matched.
func (h *Handle) Ref(s *Search) Ref { return h.t.arenas[s.Family].ref(slotIndex(s.slot)) }

// More continues a search that did not match: another slot of the bucket may have the same tag, or
// the key may be in an overflow bucket. It reports whether there is another flow to match. It is
// rarely needed.
func (h *Handle) More(s *Search) bool {
	if s.Family == header.NotPlain {
		return false
	}
	a := &h.t.arenas[s.Family]
	home := a.home(s.hash)
	slot := a.holder(
		home, a.buckets[home].ctl.Load(), uint8(s.hash), &key{addr: s.Addr, ports: s.Ports, proto: uint8(s.Proto)},
	)
	if slot == 0 || slot == s.slot {
		return false
	}
	s.slot = slot
	return true
}

// Seen refreshes a flow that Match returned. It writes at most once a second.
func (f *Flow) Seen(now Ticks) {
	if m := f.load(); now.Since(m.Seen()) >= conn.RefreshTicks {
		// If another worker was faster, it has refreshed or ended the flow.
		f.swap(m, m.Refreshed(now))
	}
}

// Rewrite sets l to the rewrite of a packet that arrived on side from, the reverse of the other
// side's tuple, without the MAC addresses. The flow must be live.
func (f *Flow) Rewrite(from Side, v6 bool, l *header.Rewrite) {
	other, d := from&1^1, f.Delta(from)
	l.Ports = bits.ReverseBytes32(bits.RotateLeft32(f.ports[other].Load(), 16))
	l.IP, l.L4 = bits.ReverseBytes16(d.IP), bits.ReverseBytes16(d.L4)
	l.Family, l.Proto = header.PlainIPv4, uint32(uint8(f.load()>>conn.MetaProtoShift))
	// Safety: a Flow is the first field of a record4 or a record6.
	if l.Addrs = &(*record4)(unsafe.Pointer(f)).addr[other]; v6 {
		l.Family, l.Addrs = header.PlainIPv6, &(*record6)(unsafe.Pointer(f)).addr[other][0]
	}
}
