package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestCountersAreFinalBeforeGeneration: a worker that always has full batches publishes its
// counters rarely. Before it publishes a generation without a backend, it must have published all
// packets sent to that backend. It must publish the generation soon, even if snapshots change fast.
func TestCountersAreFinalBeforeGeneration(t *testing.T) {
	const first, backends = 20, 60 // more than one step publishes
	for _, c := range []struct{ more, logged bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		l := newLab(t, labConfig{edit: func(b *services.Builder) {
			if c.logged {
				serveMany(b)
			}
			for i := range uint16(backends) {
				serve(b, services.ServiceID(first+i), vip4, 1000+i, header.ProtoUDP, backend4, 2000+i, false)
			}
		}})
		g := l.workers[0]
		sent := uint64(0)
		batch := func(to func(n int) uint16) {
			for n := range fastpath.BatchSize {
				if !g.nic.Inject(headertest.UDP(join(client4, 40000), join(vip4, to(n)), "x").Bytes()) {
					t.Fatal("the link took no more packets")
				}
			}
			l.step(30 * time.Microsecond)
			drain(g.nic)
		}
		for range 5 {
			batch(func(n int) uint16 {
				if n%backends == 7 {
					sent++
				}
				return 1000 + uint16(n%backends)
			})
		}
		l.publish(func(b *services.Builder) { b.DeleteBackend(services.MakeBackendRef(first+7, 1)) })
		left, steps := l.handle.Load().Generation, 0
		for ; g.stats.Generation.Load() < left; steps++ {
			if steps > 50 {
				t.Fatalf("after %d batches the worker still is in generation %d, not %d", steps,
					g.stats.Generation.Load(), left)
			}
			batch(func(n int) uint16 { return 1000 + uint16(n%5) }) // others
			if c.more {
				l.publish(nil)
			}
		}
		if n := g.stats.Backends.At(first + 7).ToBackend.Load(); n != sent {
			t.Errorf("left after %d batches: %d packets are counted, want %d", steps, n, sent)
		}
	}
}

// serveMany adds a backend with an index so high that workers count packets through the log.
func serveMany(b *services.Builder) {
	b.SetBackend(backend(5000, 99, "10.0.1.99", 99, header.ProtoUDP))
}
