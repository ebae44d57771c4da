package fastpath

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/nat/fragment"
)

// TestFragmentQueue compares the queue with a list, for random sequences of add, take and eviction.
func TestFragmentQueue(t *testing.T) {
	type waits struct {
		key   uint64
		group uint32
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, sources := range []int{1, 3, 40, 5000} {
		const limit = 100
		q := newFragmentQueue(limit, time.Second)
		var list []waits // oldest first
		for n := range uint64(20_000) {
			if len(list) == limit || len(list) > 0 && rnd.IntN(3) == 0 {
				at := rnd.IntN(len(list))
				slot := q.first
				for range at {
					slot = q.slots[slot].next
				}
				if rnd.IntN(2) == 0 { // compare the next victims
					count := map[uint32]int{}
					most := int(q.share)
					for _, w := range list {
						count[w.group]++
						most = max(most, count[w.group])
					}
					slot = q.victim()
					at = slices.IndexFunc(list, func(w waits) bool { return w.key == q.slots[slot].of.Key })
					oldest := slices.IndexFunc(list, func(w waits) bool {
						return most == int(q.share) || w.group == list[at].group && count[w.group] == most
					})
					if at < 0 || at != oldest {
						t.Fatalf("%d sources: place %d of %d is evicted, not %d", sources, at, len(list), oldest)
					}
				}
				if h := q.take(slot); h.of.Key != list[at].key {
					t.Fatalf("%d sources: took %d, want %d", sources, h.of.Key, list[at].key)
				}
				list = slices.Delete(list, at, at+1)
				continue
			}
			source := uint16(rnd.IntN(sources))
			q.add(heldFragment{of: fragment.Datagram{Key: n, Source: source}})
			list = append(list, waits{n, uint32(source) % fragmentGroups})
		}
		if q.len() != len(list) {
			t.Errorf("%d wait, want %d", q.len(), len(list))
		}
	}
}
