package services

import (
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestMoves: in random histories of frontends and addresses, Moves changes whenever a destination
// of one service port goes to another, also if no service port had it in between, and also if the
// table is built again from an empty one. If the node has none of the addresses, Moves changes in
// no other case.
func TestMoves(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	moves, others := 0, 0
	for range 300 {
		h := history{r: r, nodes: r.IntN(2) == 0, owner: map[header.Tuple]datagramOwner{},
			last: NewBuilder(nil).Build()}
		for step := range 100 {
			next, replaced := h.next()
			switch moved, changed := h.moved(next), next.Moves != h.last.Moves; {
			case moved && !changed:
				t.Fatalf("step %d: a destination went to another service port, and Moves stayed", step)
			case changed && !moved && !h.nodes && !replaced:
				t.Fatalf("step %d: no destination went to another service port, and Moves changed", step)
			case moved:
				moves++
			case !changed:
				others++
			}
			h.last = next
		}
	}
	if moves < 1000 || others < 1000 {
		t.Errorf("%d steps with moves, %d without", moves, others)
	}
}

// history makes a random sequence of snapshots with 12 UDP destinations, and TCP frontends.
type history struct {
	r     *rand.Rand
	nodes bool                           // an address may be the node's
	owner map[header.Tuple]datagramOwner // by destination: the last one it had
	last  *Snapshot
}

// next returns the next snapshot, and whether it was built from an empty table.
func (h *history) next() (_ *Snapshot, replaced bool) {
	r, b := h.r, NewBuilder(h.last)
	if replaced = r.IntN(30) == 0; replaced {
		b = NewBuilder(nil)
		h.last.Addrs(func(a header.Addr, f AddrFlags) bool { b.SetAddr(a, f); return true })
		fresh := b.Build()
		fresh.Follow(h.last)
		b = NewBuilder(fresh)
		h.last.Frontends(func(f *Frontend) bool { b.SetFrontend(f); return true })
	}
	for _, n := range r.Perm(12)[:r.IntN(3)] {
		k := FrontendKey{addr(n / 3), uint16(n % 3), header.ProtoUDP}
		if k.Addr == addr(0) && h.nodes {
			k.Addr = AnyIPv4
		}
		if r.IntN(6) == 0 {
			k.Proto = header.ProtoTCP
		}
		gone := r.IntN(3) == 0
		if gone || r.IntN(2) == 0 {
			b.DeleteFrontend(k)
		}
		if !gone {
			b.SetFrontend(&Frontend{Key: k, Service: &Service{ID: ServiceID(1 + r.IntN(3)),
				ProxyProtocol: r.IntN(4) == 0}})
		}
	}
	if h.nodes && r.IntN(20) == 0 {
		b.SetAddr(addr(1), []AddrFlags{AddrVIP, AddrVIP | AddrNode, 0}[r.IntN(3)])
	}
	return b.Build(), replaced
}

// moved reports whether a destination has another owner than the last one it had.
func (h *history) moved(next *Snapshot) (moved bool) {
	for n := range 12 {
		to := header.Tuple{Dst: addr(n / 3), DstPort: uint16(n % 3), Proto: header.ProtoUDP}
		if f := next.Frontend(&to); f != nil {
			was, had := h.owner[to]
			moved = moved || had && was != ownerOf(f.Service)
			h.owner[to] = ownerOf(f.Service)
		}
	}
	return moved
}

// TestMovesOfManyReleasedFrontends: a bounded number of released frontends is remembered. Beyond
// it, every new UDP frontend counts as moved.
func TestMovesOfManyReleasedFrontends(t *testing.T) {
	b := NewBuilder(nil)
	give := func(b *Builder, n int, id ServiceID) {
		b.SetFrontend(&Frontend{Key: FrontendKey{addr(n), 53, header.ProtoUDP}, Service: &Service{ID: id}})
	}
	for n := range maxReleased + 1 {
		give(b, n, 1)
		b.DeleteFrontend(FrontendKey{addr(n), 53, header.ProtoUDP})
	}
	s := b.Build()
	if s.Moves != 0 || s.released.owners.n > maxReleased {
		t.Fatalf("%d moves, %d released frontends", s.Moves, s.released.owners.n)
	}
	b = NewBuilder(s)
	if give(b, 0, 2); b.Build().Moves != 1 {
		t.Error("a frontend that was forgotten has another owner, and Moves stayed")
	}
}
