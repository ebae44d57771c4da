package flowtable

import (
	"math"
	"math/bits"
	"unsafe"
)

// Search is the way of one packet to its flow, in steps, so that a worker can have the cache
// misses of many packets under way at once:
//
//	Seek4, Seek6     hash the key
//	FetchBuckets     ask for the bucket lines of a group
//	FetchFlows       match tags, ask for the flows' lines
//	Match4, Match6   compare
//
// Between two steps of one packet the worker takes steps of others. What the steps before Match
// found is only a hint: the index may have changed since.
type Search struct {
	hash   uint64
	slot   uint32 // of the first member of the home bucket whose tag matches, or 0
	family uint32 // 0 IPv4, 1 IPv6, 2 nothing to search for
}

const noFamily = 2

// The assembly knows these sizes and offsets.
const (
	_ = -(unsafe.Sizeof(Search{}) ^ 16)
	_ = -(unsafe.Sizeof(geometry{}) ^ 32)
	_ = -(unsafe.Offsetof(bucket{}.tagsLo) ^ 8)
	_ = -(unsafe.Offsetof(bucket{}.slots) ^ 20)
)

// geometries are those of IPv4, of IPv6, and of searches for nothing: one empty bucket.
type geometries [3]geometry

// geometry is where an arena's lines are.
type geometry struct {
	buckets    unsafe.Pointer // *bucket
	records    unsafe.Pointer // *record4 or *record6
	homes      uint64
	recordSize uint64 // bytes
}

// emptyBucket is where a search for nothing ends.
var emptyBucket bucket

// layOut must come when the arenas have their memory.
func (t *Table) layOut() (g geometries) {
	empty := geometry{unsafe.Pointer(&emptyBucket), unsafe.Pointer(&emptyBucket), 1, 64}
	for i := range g {
		if g[i] = empty; i == noFamily {
			continue
		}
		a := &t.arenas[i]
		// Safety: the assembly adds a home below homes to buckets, and a record number that
		// it read from a slot to records, whose line it asks for and does not read.
		if g[i] = (geometry{unsafe.Pointer(&a.buckets[0]), nil, a.homes, 64}); a.v6 {
			g[i].records, g[i].recordSize = unsafe.Pointer(&a.six[0]), 128
		} else {
			g[i].records = unsafe.Pointer(&a.four[0])
		}
	}
	return g
}

// Seek4 begins the search for the flow of an IPv4 packet: source<<32 | destination, the same
// of the ports << 16, and the IANA protocol number.
func (h *Handle) Seek4(s *Search, addrs uint64, ports uint32, proto uint8) {
	s.hash, s.family = h.secret.hash4(addrs, ports, proto), 0
}

// Seek6 does so for IPv6: source and destination are a, b and c, d, big endian.
func (h *Handle) Seek6(s *Search, a, b, c, d uint64, ports uint32, proto uint8) {
	s.hash, s.family = h.secret.hash6(a, b, c, d, ports, proto), 1
}

// SeekNothing makes the steps pass over a packet.
func (s *Search) SeekNothing() { s.family = noFamily }

// FetchBuckets takes the second step, for a group of packets.
func (h *Handle) FetchBuckets(group []Search) { fetchBuckets(&h.t.geometry, group) }

// FetchFlows takes the third.
func (h *Handle) FetchFlows(group []Search) { fetchFlows(&h.t.geometry, group) }

// find is the third step's search, in Go.
func (b *bucket) find(tag uint8) uint32 {
	m := b.candidates(tag) & b.ctl.Load() & slotMask
	if m == 0 {
		return 0
	}
	return b.slots[bits.TrailingZeros64(m)].Load()
}

// steady holds, by side and by the low byte of what is above last seen in meta (state and
// notes), the age up to which a flow stays as it is by a datagram, or a TCP segment that is
// neither SYN, FIN nor RST and acknowledges. Less than zero where such a packet
// changes the flow, or there is none.
type steady [2][256]int32

func (l *lifetimes) steady() (s steady) {
	for side := range s {
		for i := range s[side] {
			s[side][i] = math.MinInt32
		}
		for state := SynSeen; state < NumStates; state++ {
			mv := moves[state][side][classACK]
			if state >= UDPNew {
				mv = datagram[state][side]
			}
			if mv == move(state)|refresh {
				s[side][state] = l[makeMeta(state, 0, 0, 0).life()]
			}
		}
	}
	return s
}

// Match4 ends a search that Seek4 began, with the same key, which must be of TCP (with ACK, and
// without SYN, FIN and RST) or of UDP. It returns the flow, and which of its sides the packet
// is on, if all that such a packet does to it is what Seen does. It returns nil if there is none,
// or if there is more to it: then MatchMore, or Lookup and Observe, know.
func (h *Handle) Match4(s *Search, addrs uint64, ports uint32, proto uint8, now Ticks) (*Flow, Side) {
	slot := s.slot
	r := &h.four[slotIndex(slot)]
	side := slotSideOf(slot)
	// Meta before the key: a live flow's ports are final. Record 0 is never live.
	m := r.load()
	if uint64(m)>>metaProtoShift != uint64(proto) || r.ports[side].Load() != ports || r.addr[side] != addrs ||
		ticks(now).since(m.seen()) > h.steady[side][uint8(m>>metaStateShift)] {
		return nil, 0
	}
	return &r.Flow, side
}

// Match6 is Match4 of a search that Seek6 began.
func (h *Handle) Match6(s *Search, a, b, c, d uint64, ports uint32, proto uint8, now Ticks) (*Flow, Side) {
	slot := s.slot
	r := &h.six[slotIndex(slot)]
	side := slotSideOf(slot)
	m := r.load()
	k := &r.addr[side]
	if uint64(m)>>metaProtoShift != uint64(proto) || r.ports[side].Load() != ports ||
		(k[0]^a)|(k[1]^b)|(k[2]^c)|(k[3]^d) != 0 ||
		ticks(now).since(m.seen()) > h.steady[side][uint8(m>>metaStateShift)] {
		return nil, 0
	}
	return &r.Flow, side
}

// MatchMore is for the rest after Match4 or Match6 found nothing: another tag of the bucket was the same, or
// the key is in a bucket that follows. Rare; a, b, c, d are as for Seek6, or a alone as for Seek4.
func (h *Handle) MatchMore(s *Search, a, b, c, d uint64, ports uint32, proto uint8, now Ticks) (*Flow, Side) {
	return h.member(s, &key{addr: [4]uint64{a, b, c, d}, ports: ports, proto: proto}, now)
}

// Seen tells a flow that Match returned about the packet. It writes at most once a second.
func (f *Flow) Seen(now Ticks) {
	if m := f.load(); ticks(now).since(m.seen()) >= refreshTicks {
		// Where another worker was faster, it has seen the flow as well, or ended it.
		f.swap(m, m.at(ticks(now)))
	}
}

// member looks through all members of the home for the key.
//
//go:noinline
func (h *Handle) member(s *Search, k *key, now Ticks) (*Flow, Side) {
	a := &h.t.arenas[s.family&1]
	home := a.home(s.hash)
	slot := a.holder(home, a.buckets[home].ctl.Load(), uint8(s.hash), k)
	if slot == 0 {
		return nil, 0
	}
	f := a.flow(slotIndex(slot))
	m := f.load()
	if uint64(m)>>metaProtoShift != uint64(k.proto) || !a.same(slot, k) {
		return nil, 0
	}
	if side := slotSideOf(slot); ticks(now).since(m.seen()) <= h.steady[side][uint8(m>>metaStateShift)] {
		return f, side
	}
	return nil, 0
}

// Ticks is a Time in the unit of the table, for Match: once per batch.
type Ticks ticks

// Ticks returns the time in ticks.
func (t Time) Ticks() Ticks { return Ticks(t.ticks()) }

// Leaving4 returns the addresses and ports, as Seek4 takes them, that a packet of an IPv4 flow
// leaves with: the reverse of the tuple of the other side than the one it came in on. It must
// be a flow that Match4 returned.
func (f *Flow) Leaving4(from Side) (addrs uint64, ports uint32) {
	// Safety: a Flow of IPv4 is the first field of a record4.
	r := (*record4)(unsafe.Pointer(f))
	return bits.RotateLeft64(r.addr[(from^1)&1], 32), bits.RotateLeft32(r.ports[(from^1)&1].Load(), 16)
}

// Leaving6 is Leaving4 for IPv6: the addresses of the other side's tuple as they are, destination
// and source of the packet that leaves.
func (f *Flow) Leaving6(from Side) (addrs *[4]uint64, ports uint32) {
	// Safety: a Flow of IPv6 is the first field of a record6.
	r := (*record6)(unsafe.Pointer(f))
	return &r.addr[(from^1)&1], bits.RotateLeft32(r.ports[(from^1)&1].Load(), 16)
}
