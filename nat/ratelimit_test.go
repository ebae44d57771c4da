package nat_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat"
)

const second = uint64(time.Second)

// Linux's rate and burst of ICMP errors (net.ipv4.icmp_msgs_per_sec, net.ipv4.icmp_msgs_burst).
const rate, burst = 1000, 50

// 50,000 requests a second get the rate, and in the first second also the burst.
func TestRateLimit(t *testing.T) {
	r := nat.NewRateLimit(rate, burst)
	const perSecond = 50_000
	now := 7 * second
	for s, want := range []int{1049, 1000, 1000} {
		allowed := 0
		for range perSecond {
			if r.Allow(now) {
				allowed++
			}
			now += second / perSecond
		}
		if allowed < want || allowed > want+1 {
			t.Errorf("second %d: %d allowed, want %d", s, allowed, want)
		}
	}
}

func TestRateLimitRefills(t *testing.T) {
	r := nat.NewRateLimit(1000, 3)
	take := func(now uint64) (n int) {
		for r.Allow(now) {
			n++
		}
		return n
	}
	now := 100 * second
	for _, c := range []struct {
		after uint64
		want  int
	}{{0, 3}, {0, 0}, {second / 2000, 0}, {second / 2000, 1}, {second / 500, 2}, {3600 * second, 3}} {
		now += c.after
		if got := take(now); got != c.want {
			t.Errorf("%d ns later: %d, want %d", c.after, got, c.want)
		}
	}
	if got := take(now - 10*second); got != 0 {
		t.Errorf("a clock that went back gave %d", got)
	}
}

func TestRateLimitZero(t *testing.T) {
	for _, r := range []nat.RateLimit{
		{}, nat.NewRateLimit(0, 50), nat.NewRateLimit(1000, 0), nat.NewRateLimit(-1, -1),
	} {
		if r.Allow(second) {
			t.Errorf("%+v allows", r)
		}
	}
}

// A source that needs more than the rate gets the rate, and does not affect a source with another
// bucket.
func TestRateLimits(t *testing.T) {
	r := nat.NewRateLimits(20, 50)
	now, allowed := 7*second, [2]int{}
	for i := range 10_000 {
		if r.Allow(1, now) {
			allowed[0]++
		}
		if i%1000 == 0 && r.Allow(2, now) {
			allowed[1]++
		}
		now += second / 10_000
	}
	if allowed[0] < 69 || allowed[0] > 70 || allowed[1] != 10 {
		t.Errorf("%d of 10,000 and %d of 10 in a second, want burst and rate, and all", allowed[0], allowed[1])
	}
}

// TestFairRateLimit: in one second a site with unlimited demand gets the rate and half of the
// burst. Meanwhile other sites get all that they request within their share. All sites together get
// at most the rate and the burst.
func TestFairRateLimit(t *testing.T) {
	const perSecond = 50_000
	r := nat.NewFairRateLimit(rate, burst)
	now, greedy, modest, asked := 7*second, 0, 0, 0
	for i := range perSecond {
		if r.Allow(1, now) {
			greedy++
		}
		if i%500 == 0 { // 100 a second, from two sites
			if asked++; r.Allow(uint64(2+i/500%2), now) {
				modest++
			}
		}
		now += second / perSecond
	}
	if modest != asked || greedy < 900 || greedy+modest > 1050 {
		t.Errorf("a greedy site got %d, others %d of %d; want all for the others, 1,050 in sum", greedy, modest, asked)
	}
	if r := nat.NewFairRateLimit(0, 50); r.Allow(1, now) {
		t.Error("a rate of 0 allows something")
	}
}
