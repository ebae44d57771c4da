package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestRepetitionsLeaveRoomForNewFlows: each step receives a full batch of SYNs sent for the third
// time, which move their flows to other backends. Parked SYNs of new flows still get their flows.
func TestRepetitionsLeaveRoomForNewFlows(t *testing.T) {
	const steps = 4
	l := newLab(t, labConfig{frames: 8192, ring: 512, edit: func(b *services.Builder) {
		b.Settings().RetryOther = true
		r := services.Rule{Set: set(b, 30, 30, header.ProtoTCP, backend4, second4)}
		rules(b, 30, services.LoadBalancer, ruleVIP, 80, header.ProtoTCP, r, r)
	}})
	g := l.workers[0]
	batch := func(from, n int) {
		for i := range n {
			l.inject(headertest.TCP(join("198.18.0.1", uint16(1024+from+i)), join(ruleVIP, 80), tcpSYN))
		}
	}
	for range 2 {
		for s := range steps {
			batch(s*fastpath.BatchSize, fastpath.BatchSize)
			l.steps()
			g.nic.Loop()
		}
		l.step(1500 * time.Millisecond)
	}
	for s := range steps {
		newFlows := 0
		if s == 0 {
			newFlows = opensPerFullStep
		}
		batch(s*fastpath.BatchSize, fastpath.BatchSize-newFlows)
		batch(steps*fastpath.BatchSize, newFlows)
		l.step(time.Millisecond) // counters of a full step are published by age
		g.nic.Loop()
		if s == 0 && g.stats.Held.Load() == 0 {
			t.Fatal("no packet is parked")
		}
	}
	held, retried := g.stats.Held.Load(), g.stats.FlowsRetried.Load()
	if held != 0 || retried < steps*opensPerFullStep/2 {
		t.Errorf("%d packets are still parked; %d flows went to other backends", held, retried)
	}
}
