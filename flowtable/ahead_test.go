package flowtable

import (
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestFetchCreate: FetchCreate prefetches the lines that Create writes. It returns the hash of the
// reply key, and Port predicts ports in the order in which Create takes them, as flows that compete
// for the same ports show.
func TestFetchCreate(t *testing.T) {
	for _, c := range []struct {
		name   string
		proto  uint8
		v6     bool
		source uint16
		ports  Ports
		want   []uint16
	}{
		{"a range", header.ProtoTCP, false, 0, Ports{First: 2000, Count: 3, Start: 1, Stride: 1},
			[]uint16{2001, 2002, 2000}},
		{"IPv6", header.ProtoUDP, true, 0, Ports{First: 2000, Count: 5, Start: 4, Stride: 3},
			[]uint16{2004, 2002, 2000, 2003, 2001}},
		{"a port of its own first", header.ProtoUDP, false, 7777, Ports{First: 2000, Count: 2, Start: 0, Stride: 1},
			[]uint16{7777, 2000, 2001}},
		{"that port alone", header.ProtoUDP, false, 7777, Ports{}, []uint16{7777}},
		{"an identifier", header.ProtoICMP, false, 0, Ports{First: 2000, Count: 2, Start: 1, Stride: 1},
			[]uint16{2001, 2000}},
		{"none", header.ProtoUDP, false, 0, Ports{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 1000, 1000)
			flow := func(i int) NewFlow {
				n := newFlow(c.proto, c.v6, uint32(i))
				n.Backend, n.Source = addrN(c.v6, 11, 1), addrN(c.v6, 12, 1)
				n.SourcePort, n.Ports = c.source, c.ports
				return n
			}
			for i, port := range c.want {
				n := flow(i)
				first := h.FetchCreate(&n)
				h.FetchPortOwner(&n, first)
				if got, ok := n.Port(i); !ok || got != port {
					t.Fatalf("Port(%d) = %d (%v), want %d", i, got, ok, port)
				}
				reply := h.reply(h.mustCreate(t, bootTime, n))
				if reply.DstPort != port {
					t.Fatalf("flow %d got port %d, want %d", i, reply.DstPort, port)
				}
				if want := h.Hash(&reply); i == 0 && first != want {
					t.Errorf("FetchCreate returned hash %x, the reply key's hash is %x", first, want)
				}
			}
			n := flow(len(c.want))
			if _, ok := n.Port(len(c.want)); ok {
				t.Errorf("Port(%d) returned a port, want none", len(c.want))
			}
			if hash := h.FetchCreate(&n); (hash == 0) != (c.want == nil) {
				t.Errorf("hash %x", hash)
			}
			validate(t, tb)
		})
	}
}

// TestTagCollision: a search that found a flow with other ports reports a collision, on both sides
// and in both families. A search that found its own flow reports none.
func TestTagCollision(t *testing.T) {
	_, h := testTable(t, 1000, 1000)
	for i := range uint32(200) {
		n := newFlow(header.ProtoUDP, i%2 == 1, i)
		r := h.mustCreate(t, bootTime, n)
		reply := h.reply(r)
		for _, tuple := range []*header.Tuple{&n.Client, &reply} {
			s := [1]Search{{Plain: plainOf(tuple)}}
			h.FetchBuckets(s[:])
			h.FetchFlows(s[:])
			if !s[0].Found() || s[0].Missed() || s[0].Hash() != h.Hash(tuple) {
				t.Fatalf("flow %d: found %v, missed %v, hash %x, want %x", i, s[0].Found(), s[0].Missed(), s[0].Hash(),
					h.Hash(tuple))
			}
			if slotIndex(s[0].slot) == r.index() && h.TagCollision(&s[0]) {
				t.Errorf("flow %d is taken for another", i)
			}
			s[0].Ports++
			if !h.TagCollision(&s[0]) {
				t.Errorf("flow %d is taken for one with another port", i)
			}
		}
	}
	if s := (&Search{Plain: header.Plain{Family: header.NotPlain}}); s.Missed() {
		t.Error("a search with a packet that is not plain reports a miss")
	}
}
