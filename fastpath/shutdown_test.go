package fastpath_test

import (
	"testing"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestShutdownPublishesAllBackends: a worker that ends publishes all counters of backends, even if
// its last packets went to many backends.
func TestShutdownPublishesAllBackends(t *testing.T) {
	t.Run("counted directly", func(t *testing.T) { shutDown(t, nil) })
	t.Run("through the log", func(t *testing.T) { shutDown(t, serveMany) })
}

func shutDown(t *testing.T, more func(*services.Builder)) {
	const first, backends = 20, fastpath.OpensPerStep
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		if more != nil {
			more(b)
		}
		for i := range uint16(backends) {
			serve(b, services.ServiceID(first+i), vip4, 1000+i, header.ProtoUDP, backend4, 2000+i, false)
		}
	}})
	g := l.workers[0]
	for i := range uint16(backends) {
		if !g.nic.Inject(headertest.UDP(join(client4, 40000), join(vip4, 1000+i), "x").Bytes()) {
			t.Fatal("the link took no more packets")
		}
	}
	g.Step(l.now)
	g.Stop()
	if err := g.Run(t.Context(), fastpath.RunConfig{CPU: -1}); err != nil {
		t.Fatal(err)
	}
	published := uint64(0)
	for i := range uint32(backends) {
		published += g.stats.Backends.At(first + i).ToBackend.Load()
	}
	if published != backends || g.stats.Tx.Load() != backends {
		t.Errorf("%d packets were sent, and %d are counted for backends, want %d", g.stats.Tx.Load(), published,
			backends)
	}
}
