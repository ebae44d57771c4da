package workers

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/host/nic/devices"
)

// TestPauseFails: where one worker stands still, whichever it is, the others go on, Pause returns,
// and once that worker moves, all can be paused.
func TestPauseFails(t *testing.T) {
	const all = 3
	for still := range all {
		g := running(t, all)
		began, moves := make(chan struct{}), make(chan struct{})
		go g.workers[still].Do(t.Context(), func(*fastpath.Worker) { close(began); <-moves })
		<-began
		paused := make(chan error, 1)
		go func() {
			_, _, err := g.Pause(50 * time.Millisecond)
			paused <- err
		}()
		select {
		case err := <-paused:
			if err == nil || !strings.Contains(err.Error(), "does nothing") {
				t.Errorf("worker %d stands still: %v", still, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("worker %d stands still: Pause does not return", still)
		}
		for id := range all {
			if id != still {
				polls(t, g, id)
			}
		}
		close(moves)
		polls(t, g, still)
		if _, _, err := g.Pause(10 * time.Second); err != nil {
			t.Errorf("worker %d moves again: %v", still, err)
		}
		g.Resume()
		polls(t, g, still)
	}
}

// polls fails unless a worker looks for packets, as one that is paused does not.
func polls(t *testing.T, g *Group, id int) {
	t.Helper()
	at := g.workers[id].block.Polls.Load()
	for deadline := time.Now().Add(5 * time.Second); g.workers[id].block.Polls.Load() == at; {
		if time.Now().After(deadline) {
			t.Errorf("worker %d is paused", id)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// running returns workers without links that run, until the test ends.
func running(t *testing.T, workers int) *Group {
	s := config.Default()
	s.Tuning.RingSize = 64
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	plan := devices.Plan{Workers: workers, Places: make([][]devices.Place, 1)}
	for id := range workers {
		plan.Places[0] = append(plan.Places[0], devices.Place{Worker: id, Queue: id})
	}
	snapshot := new(services.Handle)
	snapshot.Store(&services.Snapshot{})
	g, err := New(Config{Settings: s, Log: slog.New(slog.DiscardHandler), FrameSize: 2048, Plan: plan, Flows: table,
		Services: snapshot, Hops: nexthop.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.Run(ctx, func(err error) { t.Error(err) })
	t.Cleanup(func() {
		cancel()
		g.Wait()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}
