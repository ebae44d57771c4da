package layer2

import (
	"net/netip"
	"testing"
	"time"
)

// A VIP is announced in all rounds at their times, unless it is lost; many are announced within the
// limit, the first round of each before others' second.
func TestQueue(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	owned := func(netip.Addr) bool { return true }
	vip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	q := newQueue()
	q.add(vip(1), begin)
	var at []time.Duration
	for now := begin; ; {
		for range q.take(now, owned) {
			at = append(at, now.Sub(begin))
		}
		next, there := q.next(now)
		if !there {
			break
		}
		now = next
	}
	var sum time.Duration
	for i, r := range rounds {
		if sum += r; i >= len(at) || at[i] != sum {
			t.Fatalf("announced at %v, rounds %v", at, rounds)
		}
	}
	q = newQueue()
	const many = 3000
	for i := range many {
		q.add(vip(i), begin)
	}
	now, n := begin, 0
	for n < many {
		n += len(q.take(now, owned))
		if most := announcedAtOnce + int(now.Sub(begin).Seconds()*announcedPerSecond) + 1; n > most {
			t.Fatalf("%d are announced after %v", n, now.Sub(begin))
		}
		now, _ = q.next(now)
	}
	if took := now.Sub(begin); took > many/announcedPerSecond*time.Second {
		t.Errorf("%d VIPs took %v", many, took)
	}
	if left := q.take(now.Add(time.Hour), func(netip.Addr) bool { return false }); len(left) != 0 {
		t.Errorf("%d of lost VIPs", len(left))
	}
	if _, there := q.next(now); there {
		t.Error("lost VIPs stay in the queue")
	}
}
