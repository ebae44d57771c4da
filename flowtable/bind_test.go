package flowtable

import (
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// Workers with different snapshots bind one flow at once. The last store wins, but a generation
// never has another one's hops, and a service never another one's backend.
func TestBindAtOnce(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 1))
	f := h.Flow(r)
	h.Bind(r, 1, 1, 1, 1, 1)
	rounds := uint32(200_000)
	if testing.Short() || size.Race {
		rounds = 30_000
	}
	check := func() bool {
		binding, backend, client := f.Bound()
		if uint16(binding) != backend || backend != client {
			t.Errorf("generation %d has the hops %d and %d", binding, backend, client)
			return false
		}
		service, ref := f.Owner()
		if service != ref {
			t.Errorf("service %d has backend %d", service, ref)
			return false
		}
		return true
	}
	var wg sync.WaitGroup
	var stop atomic.Bool
	for w := range uint32(2) {
		wg.Go(func() {
			defer stop.Store(true)
			for g := uint32(1); g < rounds && !stop.Load(); g++ {
				n := 2*g + w
				h.Bind(r, n, n, n, uint16(n), uint16(n))
			}
		})
	}
	for !stop.Load() && check() {
	}
	stop.Store(true)
	wg.Wait()
	check()
	validate(t, tb)
}
