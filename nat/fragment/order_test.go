package fragment_test

import (
	"bytes"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// permutations calls f with every order of n items.
func permutations(n int, f func(order []int)) {
	order := make([]int, 0, n)
	used := make([]bool, n)
	var place func()
	place = func() {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if used[i] {
				continue
			}
			used[i] = true
			order = append(order, i)
			place()
			order = order[:len(order)-1]
			used[i] = false
		}
	}
	place()
}

// gateway is the part of a worker that fragments need: record, look up, hold, translate.
type gateway struct {
	t     *testing.T
	table *fragment.Table
	out   header.Tuple // of every flow, except the source port
	held  [][]byte
	sent  [][]byte
}

const now = uint64(1e12)

func (g *gateway) receive(frame []byte) {
	var p header.Packet
	if drop := header.Parse(frame, &p); drop != reason.None {
		g.t.Fatalf("dropped: %v", drop)
	}
	d := g.table.Datagram(frame, &p)
	if p.Fragment == header.LaterFragment {
		f, s := g.table.Later(now, d)
		if s == fragment.Unknown {
			g.held = append(g.held, frame)
			return
		}
		p.Tuple.SrcPort, p.Tuple.DstPort = f.Src, f.Dst
		g.send(frame, &p, f.ID)
		return
	}
	id, s := g.table.Record(now, d, p.Tuple.SrcPort, p.Tuple.DstPort)
	if s != fragment.Known {
		g.t.Fatalf("record: %v", s)
	}
	g.send(frame, &p, id)
	held := g.held
	g.held = nil
	for _, f := range held {
		g.receive(f)
	}
}

func (g *gateway) send(frame []byte, p *header.Packet, id uint32) {
	out := g.out
	out.SrcPort = p.Tuple.SrcPort + 20000
	nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
	nat.SetFragmentID(frame, p, id)
	g.sent = append(g.sent, frame)
}

// reassemble joins the payloads of one datagram's fragments, as a receiver does.
func reassemble(t *testing.T, frames [][]byte) []byte {
	t.Helper()
	var payload [4096]byte
	size := 0
	var id uint32
	for i, f := range frames {
		if err := headertest.Verify(f); err != nil {
			t.Fatal(err)
		}
		var p header.Packet
		if drop := header.Parse(f, &p); drop != reason.None {
			t.Fatalf("fragment %d as sent: %v", i, drop)
		}
		if i > 0 && p.FragmentID != id {
			t.Fatalf("identifications %d and %d in one datagram", id, p.FragmentID)
		}
		id = p.FragmentID
		from := p.End - p.FragmentBytes()
		n := copy(payload[p.FragmentOffset:], f[from:p.End])
		size = max(size, int(p.FragmentOffset)+n)
	}
	return payload[:size]
}

// A datagram in four fragments, in all 24 orders, over both families: the backend gets the datagram
// that a client without NAT would have sent.
func TestFragmentsInAllOrders(t *testing.T) {
	for _, e := range []struct{ client, vip, source, backend string }{
		{"192.0.2.1:4000", "198.51.100.7:53", "10.0.0.2:24000", "10.1.2.3:5353"},
		{"[2001:db8::1]:4000", "[2001:db8:1::7]:53", "[fd00::2]:24000", "[fd00:1::3]:5353"},
	} {
		text := strings.Repeat("all orders ", 27)
		want := headertest.UDP(e.source, e.backend, text).Bytes()
		source, backend := netip.MustParseAddrPort(e.source), netip.MustParseAddrPort(e.backend)
		table, err := fragment.New(make([]atomic.Uint64, fragment.Words(80)), [2]uint64{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		id := uint32(0)
		permutations(4, func(order []int) {
			id++
			fragments := headertest.Split(headertest.UDP(e.client, e.vip, text).Bytes(), 80, id)
			if len(fragments) != 4 {
				t.Fatalf("%d fragments", len(fragments))
			}
			g := &gateway{t: t, table: table, out: header.Tuple{
				Src: header.AddrFrom(source.Addr()), Dst: header.AddrFrom(backend.Addr()),
				DstPort: backend.Port(), Proto: header.ProtoUDP, V6: source.Addr().Is6(),
			}}
			for _, i := range order {
				g.receive(fragments[i])
			}
			if len(g.held) != 0 || len(g.sent) != 4 {
				t.Fatalf("order %v: %d held, %d sent", order, len(g.held), len(g.sent))
			}
			ip := headertest.IP(want)
			if got := reassemble(t, g.sent); !bytes.Equal(got, ip[len(ip)-len(got):]) {
				t.Errorf("order %v:\ngot  %x\nwant %x", order, got, ip)
			}
		})
	}
}

// Datagrams of two clients with the same identification leave with different ones.
func TestClientsDoNotShareIdentifications(t *testing.T) {
	table, err := fragment.New(make([]atomic.Uint64, fragment.Words(80)), [2]uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[uint32]bool{0x1234: true}
	for _, ends := range [][2]string{
		{"192.0.2.1:4000", "198.51.100.7:53"}, {"192.0.2.2:4000", "198.51.100.7:53"},
		{"[2001:db8::1]:4000", "[2001:db8:1::7]:53"}, {"[2001:db8::2]:4000", "[2001:db8:1::7]:53"},
	} {
		first := headertest.Split(headertest.UDP(ends[0], ends[1], strings.Repeat("x", 200)).Bytes(), 80, 0x1234)[0]
		var p header.Packet
		header.Parse(first, &p)
		id, _ := table.Record(now, table.Datagram(first, &p), p.Tuple.SrcPort, p.Tuple.DstPort)
		if ids[id] {
			t.Errorf("%s leaves with %#x, as another does or as it arrived", ends[0], id)
		}
		ids[id] = true
	}
}
