package flowtable

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// small has an index and records of both families with arbitrary contents, and searches in them.
type small struct {
	buckets [2][4]bucket
	four    [8]record4
	six     [8]record6
	geo     geometries
	secret  HashKey
	steady  conn.Steady
	now     uint32
	group   []Search
	plan    []byte // the choices of arrange, by search
}

// newSmall takes all contents from r. It takes searches from keys, as many as there are.
func newSmall(r *rand.Rand, keys []byte) *small {
	s := new(small)
	s.geo = geometries{
		{unsafe.Pointer(&s.buckets[0]), unsafe.Pointer(&s.four), uint64(len(s.buckets[0])), 64},
		{unsafe.Pointer(&s.buckets[1]), unsafe.Pointer(&s.six), uint64(len(s.buckets[1])), 128},
		{unsafe.Pointer(&emptyBucket), unsafe.Pointer(&emptyBucket), 1, 64},
	}
	for i := range s.buckets {
		for j := range s.buckets[i] {
			s.buckets[i][j].scramble(r)
		}
	}
	for i := range s.four {
		s.four[i].scramble(r)
		s.six[i].scramble(r)
		for side := range 2 {
			s.four[i].addr[side] = r.Uint64()
			s.six[i].addr[side] = [4]uint64{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()}
		}
	}
	for i := range s.secret {
		s.secret[i] = r.Uint64()
	}
	for side := range s.steady {
		for i := range s.steady[side] {
			s.steady[side][i] = int32(r.Uint32())
		}
		s.steady[side][None] = math.MinInt32
	}
	s.now = r.Uint32()
	s.fill(r, keys)
	return s
}

// scramble fills a bucket with tags of few values, so that many are equal, and with slots that name
// a record.
func (b *bucket) scramble(r *rand.Rand) {
	b.ctl.Store(r.Uint64())
	var tags [12]byte
	for i := range tags[:bucketSlots] {
		tags[i] = byte(r.IntN(4))
	}
	b.tagsLo.Store(binary.LittleEndian.Uint64(tags[:]))
	b.tagsHi.Store(binary.LittleEndian.Uint32(tags[8:]))
	for i := range b.slots {
		b.slots[i].Store(slotOf(r.Uint32N(8), Side(r.Uint32N(2))))
	}
}

// scramble fills a flow. Three flows of four have repeat 0, because a flow with another repeat
// never matches.
func (f *Flow) scramble(r *rand.Rand) {
	m := conn.Meta(r.Uint64())
	if r.IntN(4) != 0 {
		m &^= conn.MetaRepeat
	}
	f.meta.Store(uint64(m))
	f.delta = header.Delta{IP: uint16(r.Uint32()), L4: uint16(r.Uint32())}
	f.ports[0].Store(r.Uint32())
	f.ports[1].Store(r.Uint32())
}

// fill makes up to 20 searches, first from the keys.
func (s *small) fill(r *rand.Rand, keys []byte) {
	const each = 38 // bytes of a plan, a family and a key
	n := min((len(keys)+each-1)/each+r.IntN(4), 20)
	keys = append(slices.Clone(keys[:min(len(keys), n*each)]), make([]byte, n*each)...)
	s.group, s.plan = make([]Search, n), make([]byte, n)
	for i := range s.group {
		b := keys[i*each:][:each]
		s.plan[i] = b[0]
		k := &s.group[i]
		k.Family, k.Proto, k.Ports = uint32(b[1]%3), uint32(b[2]), binary.LittleEndian.Uint32(b[2:])
		for w := range k.Addr {
			k.Addr[w] = binary.LittleEndian.Uint64(b[6+8*w:])
		}
		if k.Family == header.NotPlain {
			k.Proto = header.ProtoUDP // record 0 must differ in something
		}
		k.hash, k.slot, k.End = r.Uint64(), r.Uint32(), r.Uint32()
	}
}

// twins runs a step in assembly, if this build has it, and its twin in Go on a copy of the
// searches. Both must have the same result.
func (s *small) twins(t *testing.T, step string, routine, twin func(group []Search)) {
	t.Helper()
	want := slices.Clone(s.group)
	routine(s.group)
	twin(want)
	for i := range want {
		if s.group[i] != want[i] {
			t.Fatalf("%s: search %d of %d is %+v, by the twin %+v", step, i, len(want), s.group[i], want[i])
		}
	}
}

// search compares all steps, and returns how many searches found a slot, and how many matched.
func (s *small) search(t *testing.T) (found, matched int) {
	t.Helper()
	s.twins(t, "fetchBuckets",
		func(group []Search) { fetchBuckets(&s.geo, &s.secret, group) },
		func(group []Search) { fetchBucketsGo(&s.geo, &s.secret, group) })
	for i := range s.group {
		if s.plan[i]&1 != 0 { // a tag that exists
			s.group[i].hash = s.group[i].hash&^255 | uint64(s.plan[i]>>1&3)
		}
	}
	s.twins(t, "fetchFlows",
		func(group []Search) { fetchFlows(&s.geo, group) },
		func(group []Search) { fetchFlowsGo(&s.geo, group) })
	for i := range s.group {
		if k := &s.group[i]; k.Family != header.NotPlain {
			if k.slot != 0 {
				found++
			}
			s.arrange(k, s.plan[i])
		}
	}
	for from := 0; from < len(s.group); from++ { // a search that does not match ends the group
		n := s.match(t, s.group[from:])
		matched += n
		from += n
	}
	return found, matched
}

// arrange gives most searches the key of the flow that they found, with one bit changed in some.
func (s *small) arrange(k *Search, plan byte) {
	if plan>>3&3 == 0 {
		return
	}
	i, side := slotIndex(k.slot), k.Side()
	f := &s.four[i].Flow
	words := 1
	if k.Addr[0] = s.four[i].addr[side]; k.Family == header.PlainIPv6 {
		f, k.Addr, words = &s.six[i].Flow, s.six[i].addr[side], 4
	}
	k.Ports, k.Proto = f.ports[side].Load(), uint32(f.Proto())
	switch bit := uint(plan >> 5); plan >> 3 & 3 {
	case 1:
		k.Addr[int(bit)%words] ^= 1 << (bit * 9)
	case 2:
		if bit&1 != 0 {
			k.Ports ^= 1 << (bit * 4)
		} else if bit&2 != 0 {
			k.Proto ^= 1 << bit
		}
	}
}

func (s *small) match(t *testing.T, group []Search) int {
	t.Helper()
	var flows, wantFlows [20]*Flow
	var rewrites, wantRewrites [20]header.Rewrite
	n := match(&s.geo, group, flows[:len(group)], rewrites[:len(group)], &s.steady, s.now)
	want := matchGo(&s.geo, group, wantFlows[:len(group)], wantRewrites[:len(group)], &s.steady, s.now)
	if n != want || flows != wantFlows {
		t.Fatalf("match: %d of %d, %v, by the twin %d, %v: %+v", n, len(group), flows, want, wantFlows, group)
	}
	if rewrites != wantRewrites {
		t.Fatalf("match: %+v, by the twin %+v: %+v", rewrites, wantRewrites, group)
	}
	return n
}

// TestSearchTwins: in any index, with any records and for any keys, each step of a search by the
// assembly does what its twin in Go does.
func TestSearchTwins(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	searches, found, matched := 0, 0, 0
	for range 10_000 {
		keys := make([]byte, r.IntN(700))
		for i := range keys {
			keys[i] = byte(r.Uint32())
		}
		s := newSmall(r, keys)
		f, m := s.search(t)
		searches, found, matched = searches+len(s.group), found+f, matched+m
	}
	// Half of the records have MetaProxied, so no packet matches them.
	if found < searches/10 || matched < searches/40 {
		t.Errorf("of %d searches %d found a slot, %d matched: too few for this test", searches, found, matched)
	}
}

// FuzzSearchTwins is TestSearchTwins with keys that the fuzzer chooses.
func FuzzSearchTwins(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 0))
	for n := range 20 {
		keys := make([]byte, n*38)
		for i := range keys {
			keys[i] = byte(r.Uint32())
		}
		f.Add(uint64(n), keys)
	}
	f.Fuzz(func(t *testing.T, seed uint64, keys []byte) {
		newSmall(rand.New(rand.NewPCG(seed, 0)), keys).search(t)
	})
}
