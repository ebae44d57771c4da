package flowtable

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// TestDirectFlow: a direct flow takes no source port, is told from translated flows, and keeps the
// mark of its node.
func TestDirectFlow(t *testing.T) {
	addr := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	for _, tt := range []struct{ client, vip, node string }{
		{"198.51.100.7", "203.0.113.10", "10.0.1.21"}, {"198.51.100.7", "203.0.113.10", "2001:db8:1::21"},
		{"2001:db8:c::7", "2001:db8:f::10", "10.0.1.21"}, {"2001:db8:c::7", "2001:db8:f::10", "2001:db8:1::21"},
	} {
		table, err := NewHeap(Config{IPv4Flows: 64, IPv6Flows: 64, Timeouts: DefaultTimeouts(), HashKey: HashKey{1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		h, err := table.Register()
		if err != nil {
			t.Fatal(err)
		}
		now, node := Time(time.Hour), addr(tt.node)
		h.Enter(now)
		flow := func(port uint16) NewFlow {
			return NewFlow{Service: 1, BackendRef: 1 << 20, Client: header.Tuple{
				Src: addr(tt.client), Dst: addr(tt.vip), SrcPort: port, DstPort: 80, Proto: header.ProtoTCP,
				V6: !netip.MustParseAddr(tt.client).Is4()}}
		}
		direct := flow(40000)
		direct.MakeDirect(&node, false)
		ref, status := h.Create(now, &direct)
		if status != Created || !h.Direct(ref) || h.Mark(ref) != NodeMark(&node) {
			t.Fatalf("%v: %v, direct %v, mark %x of %x", tt, status, h.Direct(ref), h.Mark(ref), NodeMark(&node))
		}
		var out header.Tuple
		if h.Outgoing(ref, ClientSide, &out); out != direct.Client {
			t.Errorf("%v: leaves as %v", tt, out)
		}
		h.ObserveOneSided(ref, Segment{Flags: header.TCPACK, Unverified: true}, now)
		if s := h.Flow(ref).State(); s != SynSeen {
			t.Errorf("%v: %v after a segment that was not verified", tt, s)
		}
		h.ObserveOneSided(ref, Segment{Flags: header.TCPACK}, now)
		if s := h.Flow(ref).State(); s != conn.Unconfirmed {
			t.Errorf("%v: %v", tt, s)
		}
		kept := flow(40001) // keeps the client's address and port, towards a pod
		kept.Backend, kept.BackendPort, kept.Source, kept.SourcePort = kept.Client.Src, 80, kept.Client.Src, 40001
		ref, status = h.Create(now, &kept)
		if status != Created || h.Direct(ref) {
			t.Errorf("%v: a translated flow: %v, direct %v", tt, status, h.Direct(ref))
		}
		h.Leave()
		if err := table.Validate(); err != nil {
			t.Errorf("%v: %v", tt, err)
		}
	}
}

// TestNodeMark: an IPv4 node has its address as mark. Marks of IPv6 nodes are pinned, because
// records outlive a process, and differ for addresses that count in two places.
func TestNodeMark(t *testing.T) {
	for a, want := range map[string]uint32{
		"10.0.1.21": 0x0a000115, "2001:db8::15": 0x0d329946, "2001:db8:1:2:3:4:5:6": 0x7e214e1a,
	} {
		b := header.AddrFrom(netip.MustParseAddr(a))
		if got := NodeMark(&b); got != want {
			t.Errorf("%s: %#x, want %#x", a, got, want)
		}
	}
	nodes := map[uint32]netip.Addr{}
	for _, place := range [][2]int{{4, 15}, {7, 11}, {14, 15}, {5, 7}} {
		for n := range 1 << 12 {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[place[0]] ^= byte(n >> 6)
			a[place[1]] ^= byte(1 + n&63)
			addr := netip.AddrFrom16(a)
			b := header.AddrFrom(addr)
			if other, ok := nodes[NodeMark(&b)]; ok && other != addr {
				t.Errorf("%v and %v have the mark %#x", addr, other, NodeMark(&b))
			}
			nodes[NodeMark(&b)] = addr
		}
	}
}

// TestOneSidedPressure: in a full table new flows end one-sided flows before handshakes and UDP
// flows, but none that is in use; and a flow that begins in the middle of a connection ends no
// other kind.
func TestOneSidedPressure(t *testing.T) {
	const flows, each = 600, 200
	tb, h := testTableOf(t, Config{IPv4Flows: flows, HalfOpen: flows, Timeouts: DefaultTimeouts()})
	direct := func(n uint32) NewFlow {
		f := newFlow(header.ProtoTCP, false, n)
		f.MakeDirect(&f.Client.Src, true)
		return f
	}
	now := bootTime
	for n := range uint32(each) {
		h.mustCreate(t, now, direct(n))
	}
	find := func(n uint32) Ref {
		f := direct(n)
		r, _ := h.lookup(&f.Client, now)
		return r
	}
	for range 5 {
		now += second
		h.Enter(now)
		for n := range uint32(each) {
			h.ObserveOneSided(find(n), Segment{Flags: header.TCPACK}, now)
		}
	}
	for n := range uint32(each) {
		h.mustCreate(t, now, direct(1000+n))
		proto := []uint8{header.ProtoTCP, header.ProtoUDP}[n%2] // a handshake, or a question
		h.mustCreate(t, now, newFlow(proto, false, 2000+n))
	}
	alive := func(first uint32) (count int) {
		for n := range uint32(each) {
			if find(first+n) != 0 {
				count++
			}
		}
		return count
	}
	for n := range uint32(each) {
		h.Enter(now)
		h.mustCreate(t, now, newFlow(header.ProtoTCP, false, 3000+n))
		if used, forged := alive(0), alive(1000); used != each || forged != each-int(n)-1 {
			t.Fatalf("after %d new flows: %d in use and %d forged ones are left of %d", n+1, used, forged, each)
		}
	}
	midway := direct(5000)
	if _, s := h.Create(now, &midway); s != TableFull {
		t.Errorf("a flow in the middle of a connection: %v, want a refusal", s)
	}
	h.mustCreate(t, now, newFlow(header.ProtoTCP, false, 5001))
	if c := tb.Counts(); c.Shed[ShedOneSided] != each || c.Shed[ShedUnreplied] != 1 {
		t.Errorf("shed %v", c.Shed)
	}
	now += 2 * second // the flows in use are idle now
	h.Enter(now)
	if r, s := h.Create(now, &midway); s != Created || h.Flow(r).State() != conn.Unconfirmed {
		t.Errorf("with idle flows: %v", s)
	}
	if got := alive(0); got != each-1 {
		t.Errorf("%d of %d left", got, each)
	}
	h.Leave()
	validate(t, tb)
}

// TestDirectFlowsRestNoPorts: however direct flows end, no reply key rests and no answer is
// expected: a flood of them takes no source port from translated flows.
func TestDirectFlowsRestNoPorts(t *testing.T) {
	node := header.AddrFrom(netip.MustParseAddr("10.0.1.21"))
	for _, ends := range [][2]string{
		{"198.51.100.7:40000", "203.0.113.10:53"}, {"[2001:db8:c::7]:40000", "[2001:db8:f::10]:53"},
	} {
		for _, direct := range []bool{false, true} {
			for name, end := range map[string]func(h *Handle, r Ref, now Time){
				"deleted":   func(h *Handle, r Ref, _ Time) { h.DeleteFor(r, EndMoved) },
				"abandoned": func(h *Handle, r Ref, now Time) { h.Abandon(r, now) },
			} {
				proto := uint8(header.ProtoUDP)
				if name == "abandoned" {
					proto = header.ProtoTCP
				}
				table, err := NewHeap(Config{IPv4Flows: 64, IPv6Flows: 64, Timeouts: DefaultTimeouts()})
				if err != nil {
					t.Fatal(err)
				}
				h, err := table.Register()
				if err != nil {
					t.Fatal(err)
				}
				client, vip := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
				n := NewFlow{Service: 1, BackendRef: 1 << 20, Client: header.Tuple{
					Src: header.AddrFrom(client.Addr()), Dst: header.AddrFrom(vip.Addr()), SrcPort: client.Port(),
					DstPort: vip.Port(), Proto: proto, V6: !client.Addr().Is4()}}
				n.Backend, n.BackendPort, n.Source, n.SourcePort = n.Client.Src, 8053, n.Client.Src, 40000
				if direct {
					n.MakeDirect(&node, false)
				}
				now := Time(time.Hour)
				h.Enter(now)
				ref, status := h.Create(now, &n)
				if status != Created {
					t.Fatal(status)
				}
				end(h, ref, now)
				of := &table.resting
				rest := of[restingUDP].latest.Load() != 0 || of[restingConnections].latest.Load() != 0
				answer := false
				for i := range table.abandoned {
					answer = answer || table.abandoned[i][0].Load() != 0
				}
				want := !direct && name == "abandoned"
				if live := table.Counts().Live; live != [2]uint64{} || rest == direct || answer != want {
					t.Errorf("%v, direct %v, %s: %d live, rests %v, answers %v", ends, direct, name, live, rest, answer)
				}
				h.Leave()
			}
		}
	}
}
