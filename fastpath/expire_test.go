package fastpath_test

import (
	"context"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// longExpired makes unanswered UDP flows at time born.
func longExpired(t *testing.T, l *lab, flows int, born flowtable.Time) {
	t.Helper()
	h, err := l.table.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for n := range flows {
		if n%64 == 0 {
			h.Enter(born)
		}
		f := flowtable.NewFlow{
			Client: header.Tuple{Src: addr(client4), SrcPort: uint16(n), Dst: addr(vip4), DstPort: uint16(n >> 16),
				Proto: header.ProtoUDP},
			Backend: addr(backend4), BackendPort: uint16(n >> 15),
			Source: addr(vip4), SourcePort: 1024 + uint16(n&0x7fff),
		}
		if _, s := h.Create(born, &f); s != flowtable.Created {
			t.Fatalf("flow %d: %v", n, s)
		}
	}
}

// TestLateExpiryIsBounded: a worker that is late with expiry ends a bounded number of flows in each
// step, so that packets do not wait long, and the next steps continue, even if no time passes.
func TestLateExpiryIsBounded(t *testing.T) {
	flows := 100_000
	if size.Race {
		flows = 20_000
	}
	for _, c := range []struct {
		late   time.Duration
		atMost int // flows that are due
	}{{100 * time.Millisecond, flows / 10}, {time.Second, flows}, {10 * time.Second, flows}} {
		l := newLab(t, labConfig{flows: uint32(flows)})
		l.validate = false
		g := l.workers[0]
		for range 1000 { // sweep the part of the empty table that is due
			g.Step(l.now)
		}
		longExpired(t, l, flows, flowtable.Time(l.now-uint64(time.Minute)))
		l.now += uint64(c.late)
		due := int(l.table.Counts().Live[0]) // one may have been evicted from the chain of another key
		ended := func() int { counts := l.table.Counts(); return int(counts.Shed[flowtable.ShedExpired]) }
		steps := 0
		for before := -1; ended() > before; steps++ {
			before = ended()
			g.Step(l.now)
			if n := ended() - before; n > 1000 {
				t.Errorf("%v late: %d flows ended in step %d", c.late, n, steps)
				break
			}
		}
		if n := ended(); n == 0 || n > c.atMost || c.late >= 5*time.Second && n != due {
			t.Errorf("%v late: %d of %d flows ended", c.late, n, due)
		}
		t.Logf("%v late: %d flows ended in %d steps", c.late, ended(), steps)
	}
}

// TestLateWorkerDoesNotSleep: a worker that wakes after a long time, with a table full of expired
// flows, ends all of them before it sleeps again.
func TestLateWorkerDoesNotSleep(t *testing.T) {
	const flows = 100_000
	// By the clock of Run, the flows were made when the machine booted, which may be a moment ago.
	l := newLab(t, labConfig{flows: flows, now: 1, timeouts: func(t *flowtable.Timeouts) {
		t.UDPUnreplied = time.Second
	}})
	longExpired(t, l, flows, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- l.workers[0].Run(ctx, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Sleep: time.Hour}})
	}()
	deadline := time.Now().Add(20 * time.Second)
	for l.table.Counts().Live[0] > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if live := l.table.Counts().Live[0]; live > 0 {
		t.Errorf("%d of %d expired flows left, and the worker sleeps", live, flows)
	}
}
