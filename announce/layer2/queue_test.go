package layer2

import (
	"net/netip"
	"testing"
	"time"
)

// A VIP is announced at the times of all rounds unless it is lost. Many VIPs are announced within
// the limit, the first round of each before the second of others.
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

// VIPs that are added again faster than the limit allows wait once each, however long that lasts,
// and each gets all of its rounds afterwards.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	owned := func(netip.Addr) bool { return true }
	q := newQueue()
	const many = 3000
	waiting := func() (n int) {
		for _, round := range q.rounds {
			n += len(round)
		}
		return n
	}
	now := begin
	for ; now.Before(begin.Add(time.Minute)); now = now.Add(10 * time.Millisecond) {
		if now.Sub(begin)%time.Second == 0 {
			for i := range many {
				q.add(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now)
			}
		}
		q.take(now, owned)
		if n := waiting(); n > 2*many {
			t.Fatalf("after %v %d announcements of %d VIPs wait", now.Sub(begin), n, many)
		}
	}
	said := map[netip.Addr]int{}
	for next, there := q.next(now); there; next, there = q.next(now) {
		now = next
		for _, vip := range q.take(now, owned) {
			said[vip]++
		}
	}
	for vip, n := range said {
		if n < len(rounds)-1 || n > len(rounds) {
			t.Errorf("%v is announced %d times when it ends", vip, n)
		}
	}
	if len(said) != many || len(q.waits) > 0 {
		t.Errorf("%d VIPs are announced when it ends, and %d wait", len(said), len(q.waits))
	}
}

// A VIP that is added again while it waits goes through the rounds once more, not twice.
func TestQueueBeginsAnew(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	owned := func(netip.Addr) bool { return true }
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	q := newQueue()
	q.add(a, begin)
	q.add(b, begin)
	q.take(begin, owned)
	q.add(b, begin.Add(100*time.Millisecond))
	q.again(a, begin.Add(100*time.Millisecond))
	said := map[netip.Addr]int{}
	for now := begin.Add(200 * time.Millisecond); now.Before(begin.Add(10 * time.Second)); now = now.Add(time.Second) {
		for _, vip := range q.take(now, owned) {
			said[vip]++
		}
	}
	if said[a] != len(rounds) || said[b] != len(rounds) { // of a: one by again, one before
		t.Errorf("announced: %v", said)
	}
}
