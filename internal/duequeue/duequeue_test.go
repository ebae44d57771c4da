package duequeue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

type item struct{ Timer }

// TestQueue compares a queue with a linear search while values are added, rescheduled and removed.
func TestQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	items := make([]*item, 50)
	for i := range items {
		items[i] = &item{}
	}
	var q Queue[*item]
	in := map[*item]time.Time{}
	for range 10_000 {
		x := items[random.IntN(len(items))]
		if random.IntN(3) > 0 {
			in[x] = time.Unix(random.Int64N(1000), 0)
			q.Schedule(x, in[x])
		} else {
			delete(in, x)
			q.Remove(x)
		}
		first, ok := q.First()
		var all []*item
		q.All(func(x *item) { all = append(all, x) })
		if ok != (len(in) > 0) || len(all) != len(in) {
			t.Fatalf("first %v, %d values, want %d", ok, len(all), len(in))
		}
		if !ok {
			continue
		}
		for x, due := range in {
			if !slices.Contains(all, x) || !x.Due().Equal(due) || due.Before(first.Due()) {
				t.Fatalf("a value is due at %v, want %v, and the first at %v", x.Due(), due, first.Due())
			}
		}
	}
}
