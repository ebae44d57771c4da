package fastpath

import (
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestHopIndex: the counts by destination match the queue after random calls of add, remove and
// keep, with few destinations and with more than there are entries.
func TestHopIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, destinations := range []uint32{1, 7, 100, 100_000} {
		const limit = 32
		q := newHopQueue(limit, 8, [2]uint64{rnd.Uint64(), rnd.Uint64()})
		for range 20_000 {
			switch n := rnd.IntN(40); {
			case n == 0:
				kept := q.held[:0]
				for i := range q.held {
					if rnd.IntN(2) == 0 {
						kept = append(kept, q.held[i])
					}
				}
				q.keep(kept)
			case n < 20 && q.len() > 0:
				q.remove(rnd.IntN(q.len()))
			case q.len() < limit:
				a := rnd.Uint32N(destinations)
				q.add(outgoing{dst: header.AddrFrom4([4]byte{10, byte(a >> 16), byte(a >> 8), byte(a)}),
					precedence: precedence(rnd.IntN(3))}, 0)
			}
			want, all := map[header.Addr]countByPrecedence{}, countByPrecedence{}
			for i := range q.held {
				o := &q.held[i].o
				n := want[o.dst]
				n[o.precedence]++
				all[o.precedence]++
				want[o.dst] = n
			}
			if q.all != all {
				t.Fatalf("%v in all, want %v", q.all, all)
			}
			for dst, n := range want {
				if got := q.index.of(&dst).waiting; got != n {
					t.Fatalf("%v waits for %v, want %v", got, dst, n)
				}
				if got := q.oldest(&dst, n.lowest()); q.held[got].o.dst != dst || n.lowest() > n.highest() {
					t.Fatalf("the oldest packet to %v is at %d", dst, got)
				}
			}
		}
	}
}

// TestFullHopQueueIsNotSearched: the queue is full of packets of flows that wait for four silent
// backends. A further packet, to one of these or another backend, is dropped without a search of
// the queue. The test makes the queue differ from the index to notice a search.
func TestFullHopQueueIsNotSearched(t *testing.T) {
	const limit, perHop = 512, 128
	q := newHopQueue(limit, perHop, [2]uint64{1, 2})
	var backends [limit / perHop]header.Addr
	for n := range backends {
		backends[n] = header.AddrFrom4([4]byte{10, 0, 9, byte(n)})
		for range perHop {
			q.add(outgoing{dst: backends[n], precedence: known}, 0)
		}
	}
	clear(q.held)
	for n := range backends {
		if w := q.index.of(&backends[n]).waiting; w.total() != perHop || w.lowest() != known || w.highest() != known {
			t.Errorf("%v waits for backend %d, want %d of flows", w, n, perHop)
		}
	}
	if i := q.evictable(known); i != -1 {
		t.Errorf("the packet at %d would be evicted, want none", i)
	}
}
