package workers

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/placement"
)

// TestCPUIsLost: workers move to the next CPU when the best one becomes unusable.
func TestCPUIsLost(t *testing.T) {
	cpus, err := config.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("this process may use one CPU only")
	}
	const lost = 1 << 9
	at, next := cpus[0], cpus[1]
	s := config.Default()
	s.Tuning.RingSize = 64
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, counts := new(services.Handle), make([]uint64, lost+1)
	snapshot.Store(&services.Snapshot{})
	g, err := New(Config{
		Settings: s, Log: slog.New(slog.DiscardHandler), FrameSize: 2048,
		Plan:  devices.Plan{Workers: 1, Places: [][]devices.Place{{{}}}},
		Flows: table, Services: snapshot, Hops: nexthop.NewTable(),
		Machine: placement.Machine{Allowed: []int{at, lost, next}, Interrupts: []int{next}},
		Arrivals: func() ([]uint64, error) {
			counts[at] += 1000
			return slices.Clone(counts), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g.Run(ctx, func(err error) { t.Error(err) })
	var followed sync.WaitGroup
	followed.Go(func() { g.Follow(ctx) })
	if p := g.placed.Load(); !slices.Equal(p.CPUs, []int{at}) {
		t.Errorf("at first on CPU %v, want %d", p.CPUs, at)
	}
	for deadline := time.Now().Add(30 * time.Second); !slices.Equal(g.placed.Load().CPUs, []int{next}); {
		if time.Now().After(deadline) {
			t.Errorf("on CPU %v, want %d", g.placed.Load().CPUs, next)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	followed.Wait()
	g.Wait()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
