package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestSleepsWhenCountersArePublished: each step publishes the counters of a few backends, and the
// worker does not sleep before all are published. A packet that arrives meanwhile waits for at most
// one step.
func TestSleepsWhenCountersArePublished(t *testing.T) {
	const backends = 5000
	l := newLab(t, labConfig{})
	w := l.workers[0]
	w.stats.Backends.Ensure(backends)
	for i := range uint32(backends) {
		w.stats.Backends.Count(1<<20|i, 0, 60)
	}
	published := func() int { return publishedPackets(w.stats, backends) }
	if w.MayRest() {
		t.Error("the worker would sleep, and publish all counters at once")
	}
	for last := published(); !w.MayRest(); {
		l.step(time.Microsecond)
		now := published()
		if now-last > 64 || now == last && now < backends {
			t.Fatalf("a step published the counters of %d backends", now-last)
		}
		last = now
	}
	if n := published(); n != backends {
		t.Errorf("the worker would sleep with the counters of %d of %d backends published", n, backends)
	}
}

// publishedPackets returns the sum of the published packets to the first backends.
func publishedPackets(s *stats.Block, backends uint32) (n int) {
	for i := range backends {
		n += int(s.Backends.At(i).ToBackend.Load())
	}
	return n
}

// TestFewCountersBehindPackets: more packets are likely to follow a step with packets, so the next
// step publishes no more backends than that step, even if it moves no packet.
func TestFewCountersBehindPackets(t *testing.T) {
	const backends = 5000
	l := newLab(t, labConfig{})
	w := l.workers[0]
	w.stats.Backends.Ensure(backends)
	for i := range uint32(backends) {
		w.stats.Backends.Count(1<<20|i, 0, 60)
	}
	l.step(time.Microsecond)
	var took []int
	w.nic.Inject(headertest.UDP(join(client4, 1000), join(vip4, 53), "x").Bytes())
	for range 3 {
		last := publishedPackets(w.stats, backends)
		l.step(time.Microsecond)
		took = append(took, publishedPackets(w.stats, backends)-last)
	}
	if took[0] > 16 || took[1] > 16 || took[2] <= 16 {
		t.Errorf("a step with a packet and two without published the counters of %v backends, want 16, 16 and 64", took)
	}
}

// TestFewPacketsWhileRoutesChange: after a change of routes each flow must be bound again, which
// takes longer than forwarding its packet. So steps take fewer packets until most flows are bound.
func TestFewPacketsWhileRoutesChange(t *testing.T) {
	const flows = fastpath.BatchSize
	l := newLab(t, labConfig{})
	w := l.workers[0]
	send := func() (moved int) {
		for i := range uint16(flows) {
			w.nic.Inject(headertest.UDP(join(client4, 1000+i), join(vip4, 53), "x").Bytes())
		}
		l.now += uint64(time.Microsecond)
		return w.Step(l.now)
	}
	rest := func() {
		for range 2 * flows / fastpath.OpensPerStep {
			l.step(time.Microsecond)
			w.nic.Loop()
		}
	}
	send()
	rest()
	if n := send(); n != flows {
		t.Fatalf("a step took %d packets of known flows, want %d", n, flows)
	}
	rest()
	view := *l.hops.View()
	view.Generation++
	l.hops.Publish(&view)
	var taken []int
	for n, left := send(), flows; left > 0; n = w.Step(l.now) {
		taken, left = append(taken, n), left-n
		if n == 0 {
			t.Fatalf("steps took %v packets and no more", taken)
		}
		w.nic.Loop()
	}
	if taken[0] > 64 || taken[1] > 64 {
		t.Errorf("steps took %v packets, the first of flows that had to be bound again", taken)
	}
	rest()
	if n := send(); n != flows {
		t.Errorf("a step took %d packets when all flows were bound, want %d", n, flows)
	}
}
