package checks

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
)

// rig runs a Runner on loopback.
type rig struct {
	*Runner
	mu       sync.Mutex
	health   map[netip.AddrPort]compiler.EndpointHealth
	problems []objects.Problem
	snapshot *services.Snapshot
	own      bool // addresses are this node's
}

func newRig(t *testing.T, settings endpointhealth.Config, blocks ...*stats.Block) *rig {
	t.Helper()
	g := &rig{health: map[netip.AddrPort]compiler.EndpointHealth{}}
	var err error
	g.Runner, err = New(Config{
		Log: slog.New(slog.DiscardHandler), Settings: settings, Blocks: blocks,
		Own: func(netip.Addr) bool { g.mu.Lock(); defer g.mu.Unlock(); return g.own },
		Apply: func(_ context.Context, list []compiler.EndpointHealth) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			for _, h := range list {
				g.health[netip.AddrPortFrom(h.Addr.Netip(), h.Port)] = h
			}
			return nil
		},
		Report:   func(p []objects.Problem) { g.mu.Lock(); g.problems = p; g.mu.Unlock() },
		Snapshot: func() *services.Snapshot { g.mu.Lock(); defer g.mu.Unlock(); return g.snapshot },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); g.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return g
}

func (g *rig) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		g.mu.Lock()
		ok := holds()
		g.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s; counts %+v", what, g.Counts())
		}
	}
}

// port is a checked port of one endpoint.
func port(service string, at netip.AddrPort) *compiler.CheckedPort {
	return &compiler.CheckedPort{Namespace: "default", Service: service, PortName: "p", Proto: header.ProtoTCP,
		Check: objects.Check{Kind: objects.CheckTCP, Interval: time.Second, Timeout: 200 * time.Millisecond, Rise: 1,
			Fall: 1},
		Endpoints: []netip.AddrPort{at}}
}

func listen(t *testing.T, at string) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).AddrPort()
}

// TestRunner: an endpoint that is closed is applied as down, as up when it listens again, and as up
// when it becomes an address of this node, which is not asked. What has no room is reported.
func TestRunner(t *testing.T) {
	l, at := listen(t, "127.0.0.1:0")
	g := newRig(t, endpointhealth.Config{ChecksPerSecond: 2})
	g.SetCheckedPorts([]*compiler.CheckedPort{port("web", at)})
	g.await(t, "a check passed", func() bool { return g.Counts().Checks > 0 })
	if c := g.Counts(); c.Failures > 0 || c.Checked != 1 {
		t.Errorf("counts are %+v", c)
	}
	_ = l.Close()
	g.await(t, "it is down", func() bool { return g.health[at].Down })
	listen(t, at.String())
	g.await(t, "it is up", func() bool { return !g.health[at].Down })
	var v endpointhealth.View
	g.Views(func(_ compiler.Endpoint, view endpointhealth.View) { v = view })
	if v.Down || !strings.HasPrefix(v.Last, "connected in") || v.Check != "tcp" {
		t.Errorf("the view is %+v", v)
	}
	g.mu.Lock()
	g.own = true
	g.mu.Unlock()
	g.await(t, "it is not asked", func() bool {
		g.Views(func(_ compiler.Endpoint, view endpointhealth.View) { v = view })
		return v.Last == "not checked: an address of this node"
	})
	g.SetCheckedPorts([]*compiler.CheckedPort{port("web", at), port("b", at), port("c", at)})
	g.await(t, "what has no room is reported", func() bool { return len(g.problems) == 1 })
	if p := g.problems[0]; p.Object.Name != "c" || !strings.Contains(p.Message, "the gateway's rate of checks") {
		t.Errorf("the problem is %v", p)
	}
	g.Configure(endpointhealth.Config{ChecksPerSecond: 100})
	g.await(t, "there is room", func() bool { return len(g.problems) == 0 })
}

// TestRunnerSamples: counters of all workers together make an endpoint suspicious that nobody
// listens at, and a check makes it down.
func TestRunnerSamples(t *testing.T) {
	l, at := listen(t, "127.0.0.1:0")
	_ = l.Close()
	blocks := []*stats.Block{new(stats.Block), new(stats.Block)}
	for _, b := range blocks {
		b.Backends.Ensure(8)
	}
	ref := services.MakeBackendRef(3, 1)
	b := services.NewBuilder(nil)
	b.SetBackend(services.Backend{Addr: header.AddrFrom(at.Addr()), Port: at.Port(), Proto: header.ProtoTCP, Ref: ref,
		Flags: services.BackendReady | services.BackendServing, Service: 1, Weight: 1})
	b.SetService(&services.Service{ID: 1, Namespace: "default", Name: "web", PortName: "p", Proto: header.ProtoTCP,
		Port: 80, Backends: []services.BackendRef{ref}})
	g := newRig(t, endpointhealth.Config{Passive: true}, blocks...)
	g.mu.Lock()
	g.snapshot = b.Build()
	g.mu.Unlock()
	g.await(t, "it is down", func() bool {
		for _, b := range blocks {
			c := b.Backends.At(ref.Index())
			c.Flows.Add(1)
			c.Refused.Add(1)
		}
		return g.health[at].Down
	})
	listen(t, at.String())
	g.await(t, "it is up", func() bool { return !g.health[at].Down })
}

// BenchmarkSample is what passive checks cost while nothing is suspicious: one pass over 100,000
// backends and the counters of two workers, twice a second.
func BenchmarkSample(b *testing.B) {
	const backends = 100_000
	blocks := []*stats.Block{new(stats.Block), new(stats.Block)}
	for _, block := range blocks {
		block.Backends.Ensure(backends + 1)
	}
	builder := services.NewBuilder(nil)
	for i := range uint32(backends) {
		builder.SetBackend(services.Backend{Addr: header.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
			Port: 80, Proto: header.ProtoTCP, Ref: services.MakeBackendRef(i+1, 1), Service: 1, Weight: 1,
			Flags: services.BackendReady})
	}
	snapshot := builder.Build()
	r := &Runner{cfg: Config{Blocks: blocks}, tracker: endpointhealth.New(endpointhealth.Config{Passive: true})}
	for b.Loop() {
		r.tracker.Sample(snapshot, r.tally, time.Time{})
	}
}
