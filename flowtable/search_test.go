package flowtable

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// match runs all steps of a search for one tuple.
func (h *Handle) match(t *header.Tuple, now Time) (*Flow, Side) {
	f, side, _ := h.matchAndRewrite(t, now)
	return f, side
}

func (h *Handle) matchAndRewrite(t *header.Tuple, now Time) (*Flow, Side, header.Rewrite) {
	var s [1]Search
	s[0].Plain = plainOf(t)
	h.FetchBuckets(s[:])
	h.FetchFlows(s[:])
	var flows [1]*Flow
	var rewrites [1]header.Rewrite
	if h.Match(s[:], flows[:], rewrites[:], now.Ticks()) == 0 && h.More(&s[0]) {
		h.Match(s[:], flows[:], rewrites[:], now.Ticks())
	}
	return flows[0], s[0].Side(), rewrites[0]
}

// plainOf returns the key of a packet.
func plainOf(t *header.Tuple) header.Plain {
	var k key
	k.from(t)
	p := header.Plain{Proto: uint32(k.proto), Ports: k.ports, Addr: k.addr}
	if t.V6 {
		p.Family = header.PlainIPv6
	}
	return p
}

// TestSearch: in a completely full table the steps find exactly the flows that Lookup finds, on the
// same side, with the tuple that Outgoing returns.
func TestSearch(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		const flows = 20_000
		_, h := testTable(t, flows, flows)
		refs := make([]Ref, flows)
		for i := range refs {
			refs[i] = h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, v6, uint32(i)))
			for range conn.CountedDatagrams { // more are not counted
				h.Observe(refs[i], ClientSide, Segment{}, bootTime)
			}
		}
		for i, r := range refs {
			f := newFlow(header.ProtoUDP, v6, uint32(i))
			var toBackend header.Tuple
			h.Outgoing(r, ClientSide, &toBackend)
			reply := toBackend.Reverse()
			got, side, rewrite := h.matchAndRewrite(&f.Client, bootTime)
			if got != h.Flow(r) || side != ClientSide {
				t.Fatalf("flow %d: %p on side %d, want %p", i, got, side, h.Flow(r))
			}
			agreeRewrite(t, got, side, &rewrite, &f.Client, &toBackend)
			// There was no reply yet: the first reply changes the flow, which Match leaves to
			// Observe.
			if got, _ := h.match(&reply, bootTime); got != nil {
				t.Fatalf("flow %d: a first reply matched", i)
			}
			h.Observe(r, ReplySide, seg(ReplySide, 0), bootTime)
			if got, side, rewrite = h.matchAndRewrite(&reply, bootTime); got != h.Flow(r) || side != ReplySide {
				t.Fatalf("flow %d: %p on side %d by its reply, want %p", i, got, side, h.Flow(r))
			}
			toClient := f.Client.Reverse()
			agreeRewrite(t, got, side, &rewrite, &reply, &toClient)
			f.Client.SrcPort ^= 0x8000
			if got, _ := h.match(&f.Client, bootTime); got != nil {
				t.Fatalf("flow %d found by a tuple of no flow", i)
			}
		}
	}
}

// agreeRewrite fails the test unless Match and Flow.Rewrite return the same rewrite, and the
// rewrite turns the packet's tuple into the wanted one.
func agreeRewrite(t *testing.T, f *Flow, side Side, l *header.Rewrite, in, out *header.Tuple) {
	t.Helper()
	var twin header.Rewrite
	if f.Rewrite(side, in.V6, &twin); *l != twin {
		t.Fatalf("Match returned %+v, Flow.Rewrite %+v", *l, twin)
	}
	// A little-endian processor stores these words in the byte order of headers.
	var wire [8]byte
	binary.LittleEndian.PutUint32(wire[0:], l.Ports)
	binary.LittleEndian.PutUint16(wire[4:], l.IP)
	binary.LittleEndian.PutUint16(wire[6:], l.L4)
	d := header.Delta{IP: binary.BigEndian.Uint16(wire[4:]), L4: binary.BigEndian.Uint16(wire[6:])}
	if want := header.DeltaOf(in, out); d != want {
		t.Fatalf("delta %+v, want %+v", d, want)
	}
	k := key{ports: bits.RotateLeft32(binary.BigEndian.Uint32(wire[0:]), 16), proto: uint8(l.Proto)}
	words := unsafe.Slice(l.Addrs, 1+3*int(l.Family)) // Safety: one word, or four of IPv6
	copy(k.addr[:], words)
	var other header.Tuple
	if k.to(&other, l.Family == header.PlainIPv6); other.Reverse() != *out {
		t.Fatalf("leaves with the reverse of %+v, want %+v", other, out)
	}
}

// TestMatchComparesAll: the slot that FetchFlows found is a hint, and belongs to another flow if
// tags collide. Match accepts only a flow whose key equals the packet's in every bit, on both sides
// and in both families.
func TestMatchComparesAll(t *testing.T) {
	_, h := testTable(t, 64, 64)
	for _, v6 := range []bool{false, true} {
		n := newFlow(header.ProtoUDP, v6, 1)
		r := h.mustCreate(t, bootTime, n)
		for range conn.CountedDatagrams { // assured: a datagram of either side changes nothing
			h.assure(r, bootTime)
		}
		reply := h.reply(r)
		for side, tuple := range []*header.Tuple{&n.Client, &reply} {
			s := [1]Search{{Plain: plainOf(tuple), slot: slotOf(r.index(), Side(side))}}
			matches := func() bool {
				var flows [1]*Flow
				var rewrites [1]header.Rewrite
				return h.Match(s[:], flows[:], rewrites[:], bootTime.Ticks()) == 1
			}
			if !matches() {
				t.Fatalf("IPv6 %v, side %d: the packet's own flow does not match", v6, side)
			}
			words := 1
			if v6 {
				words = 4
			}
			for bit := range 64 * words {
				s[0].Addr[bit/64] ^= 1 << (bit % 64)
				if matches() {
					t.Errorf("IPv6 %v, side %d: matches with bit %d of address word %d changed", v6, side, bit%64,
						bit/64)
				}
				s[0].Addr[bit/64] ^= 1 << (bit % 64)
			}
			for bit := range 32 {
				s[0].Ports ^= 1 << bit
				if matches() {
					t.Errorf("IPv6 %v, side %d: matches with bit %d of the ports changed", v6, side, bit)
				}
				s[0].Ports ^= 1 << bit
			}
			for bit := range 8 {
				s[0].Proto ^= 1 << bit
				if matches() {
					t.Errorf("IPv6 %v, side %d: matches with bit %d of the protocol changed", v6, side, bit)
				}
				s[0].Proto ^= 1 << bit
			}
		}
	}
}

// TestMatchEqualsObserve: for every meta and age of a flow, Match finds the flow only if it is not
// expired and Seen has the same effect as Observe. And it does find the flow whenever that effect
// is only a refresh of a flow without notes.
func TestMatchEqualsObserve(t *testing.T) {
	matched, refreshed := 0, 0
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		tb, h := testTable(t, 64, 0)
		n := newFlow(proto, false, 1)
		r := h.mustCreate(t, bootTime, n)
		var out header.Tuple
		h.Outgoing(r, ClientSide, &out)
		tuples := [2]header.Tuple{n.Client, out.Reverse()}
		f := h.Flow(r)
		for state := SynSeen; state < NumStates; state++ {
			if (state >= UDPNew) != (proto == header.ProtoUDP) || state == ICMPEcho {
				continue
			}
			for _, notes := range []conn.Meta{0, conn.MetaReset, conn.MetaAgain, conn.MetaFin, conn.MetaPending,
				conn.MetaFinClient,
				conn.MetaFinBackend, 3 << conn.MetaRepeatShift} {
				for _, age := range []int32{-20, -1, 0, 1, 9, 10, 11, 500, 2410, 3010, 74410, 74411, 1 << 30} {
					for side := range tuples {
						now := bootTime + 1000*24*3600*second
						m := conn.MakeMeta(state, proto, now.Ticks()-Ticks(age)) | notes
						f.meta.Store(uint64(m))
						observe := func(s Segment) conn.Meta {
							if m.OneSided() && Side(side) == ClientSide {
								return m.ObserveOneSided(s, now.Ticks())
							}
							return m.Observe(Side(side), s, testISN, now.Ticks())
						}
						want := observe(seg(Side(side), header.TCPACK))
						data := observe(seg(Side(side), header.TCPACK|tcpPSH))
						got, _ := h.match(&tuples[side], now)
						if got != nil {
							got.Seen(now.Ticks())
						}
						after := f.load()
						valid := m.Live() && !tb.lifetimes.Expired(m, now.Ticks())
						written := conn.MetaSeen // by a refresh
						switch {
						case state == UDPAssured:
							written |= conn.MetaUsed
						case m.OneSided():
							written |= conn.MetaRefreshed
						}
						plain := valid && notes&^conn.MetaFins == 0 && (want^m)&^written == 0 && data == want &&
							refreshedBy(state, proto, Side(side))
						if (got != nil) != plain {
							t.Fatalf("%v, notes %x, age %d, side %d: matched %v, want %v", state, notes, age, side,
								got != nil, plain)
						}
						if got == nil && after != m || got != nil && after != want {
							t.Fatalf("%v, notes %x, age %d, side %d: meta %x, was %x, Observe makes it %x", state,
								notes, age, side, after, m, want)
						}
						if got != nil {
							matched++
						}
						if after != m {
							refreshed++
						}
					}
				}
			}
		}
	}
	if matched < 50 || refreshed < 20 {
		t.Errorf("%d matched, %d of them refreshed: too few for this test", matched, refreshed)
	}
}

// TestFetchFlows: in any bucket FetchFlows finds the first member whose tag matches.
func TestFetchFlows(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	tb, h := testTable(t, 1000, 1000)
	for family := range tb.arenas {
		a := &tb.arenas[family]
		for i := range a.buckets {
			b := &a.buckets[i]
			b.ctl.Store(r.Uint64())
			// Few values, so that many match.
			var tags [12]byte
			for j := range tags {
				tags[j] = byte(r.IntN(4))
			}
			b.tagsLo.Store(binary.LittleEndian.Uint64(tags[:]))
			b.tagsHi.Store(binary.LittleEndian.Uint32(tags[8:]) & 0xffffff)
			for j := range b.slots {
				b.slots[j].Store(r.Uint32() & 0x800003ff)
			}
		}
	}
	found := 0
	for range 10_000 {
		group := make([]Search, r.IntN(40))
		for i := range group {
			group[i].Plain = header.Plain{
				Family: uint32(r.IntN(3)), Proto: uint32(r.IntN(256)), Ports: r.Uint32(),
				Addr: [4]uint64{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()},
			}
			group[i].slot = 77
		}
		h.FetchBuckets(group)
		for i := range group {
			s := &group[i]
			k := key{addr: s.Addr, ports: s.Ports, proto: uint8(s.Proto)}
			if want := h.secret.hash(s.Family == header.PlainIPv6, &k); s.Family != header.NotPlain && s.hash != want {
				t.Fatalf("hash %x of %+v, want %x", s.hash, s.Plain, want)
			}
			s.hash = s.hash&^255 | uint64(r.IntN(5)) // a tag that exists
		}
		h.FetchFlows(group)
		for _, s := range group {
			want := uint32(0)
			if s.Family != header.NotPlain {
				a := &tb.arenas[s.Family]
				want = a.buckets[a.home(s.hash)].firstByTag(uint8(s.hash))
			}
			if s.slot != want {
				t.Fatalf("family %d, hash %x: slot %x, want %x", s.Family, s.hash, s.slot, want)
			}
			if want != 0 {
				found++
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d slots found", found)
	}
}

// firstByTag is the method first with a simple loop over the tags.
func (b *bucket) firstByTag(tag uint8) uint32 {
	for i := range b.slots {
		t := b.tagsLo.Load() >> (8 * i)
		if i >= 8 {
			t = uint64(b.tagsHi.Load()) >> (8 * (i - 8))
		}
		if uint8(t) == tag && b.ctl.Load()>>i&1 != 0 {
			return b.slots[i].Load()
		}
	}
	return 0
}

// refreshedBy reports whether an ACK or a datagram of a side refreshes a flow without notes, and
// has no other effect.
func refreshedBy(state State, proto uint8, side Side) bool {
	const before, now = Ticks(1000), Ticks(1025)
	m := conn.MakeMeta(state, proto, before)
	n := m.Observe(side, seg(side, header.TCPACK), testISN, now)
	return n.Seen() == now && n.State() == state
}
