package compiler_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestSelfCheckRaisesNoFalseAlarm: after any random changes the check of every Service finds that
// it is right.
func TestSelfCheckRaisesNoFalseAlarm(t *testing.T) {
	w, cfg := newWorld(t), controltest.Config()
	cfg.TunnelPort = 8081
	tracker, c := tracker.New(), compiler.New(cfg)
	for n := range 10_000 {
		w.step(tracker)
		if w.chance(2) {
			_ = c.Drain(compiler.Drain{Addr: header.AddrFrom4([4]byte{10, 0, 0, byte(1 + w.one(24))})})
		}
		c.Compile(tracker.Changes())
		if n%20 != 0 {
			continue
		}
		if d := c.CheckAll(tracker); d != "" {
			t.Fatalf("after %d changes: %s", n+1, d)
		}
	}
}

func newWorld(t *testing.T) world {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test -run %s -seed %[1]d", seed, t.Name())
	return world{rand.New(rand.NewPCG(seed, 0))}
}

// refs are the numbers of all backends, by what they are of.
func refs(s *services.Snapshot) map[string]services.BackendRef {
	m := map[string]services.BackendRef{}
	s.Backends(func(b *services.Backend) bool {
		m[serviceName(s.Service(b.Service))+" "+hostPort(b.Addr, b.Port)] = b.Ref
		return true
	})
	return m
}

// checked is a compiler of a few Services, one of which has something of everything, beside
// what is read and steered by.
type checked struct {
	tracker  *tracker.Tracker
	compiler *compiler.Compiler
	kernel   *controltest.Kernel
}

func newChecked(t *testing.T) *checked {
	c := &checked{tracker.New(), compiler.New(controltest.Config()), controltest.NewKernel()}
	all := c.compiler.Steer()
	c.kernel.Must(t, &all.Open, c.kernel.Open)
	for i := range 40 { // so that numbers are not those of a table made from nothing
		c.add(i)
		c.tracker.Delete(controltest.Source, objects.ObjectID{Kind: objects.KindService, Namespace: "bench",
			Name: controltest.Service(i).Name})
		c.compile()
	}
	var b tracker.Batch
	s, e := controltest.LocalService(1, 31000, "gw-1", "gw-2", "gw-1")
	s.Spec.Ports[1].Protocol = corev1.ProtocolTCP
	e.Endpoints[1].Addresses[0] = "127.0.0.1" // a problem of its own
	internal := s.DeepCopy()
	internal.Spec.ClusterIPs = []string{"203.0.113.77"}
	internal.Spec.IPFamilies = nil
	b.Upsert(controltest.Source, internal)
	b.Upsert(controltest.Source, e)
	for i := 2; i < 40; i++ {
		b.Upsert(controltest.Source, controltest.Service(i))
		b.Upsert(controltest.Source, controltest.Slice(i, 0))
	}
	c.tracker.Apply(&b)
	c.compile()
	cfg := controltest.Config()
	cfg.ClusterIPs = true
	c.steer(c.compiler.Configure(cfg))
	return c
}

func (c *checked) add(i int) {
	c.tracker.Upsert(controltest.Source, controltest.Service(i))
	c.tracker.Upsert(controltest.Source, controltest.Slice(i, 0))
	c.compile()
}

func (c *checked) compile() {
	c.compiler.Release(c.compiler.Snapshot().Generation)
	c.steer(c.compiler.Compile(c.tracker.Changes()))
}

func (c *checked) steer(_ *services.Snapshot, _ []objects.Problem, s *steer.Change) {
	_ = c.kernel.Open(&s.Open) // the fake refuses nothing
	_ = c.kernel.Close(&s.Close)
}

// checkAll makes as many checks as all Services take.
func (c *checked) checkAll() (services int, difference string) {
	for range 20 {
		n, d := c.compiler.Check(c.tracker, c.compiler.Snapshot())
		if services += n; d != "" {
			return services, d
		}
	}
	return services, ""
}

func TestSelfCheckFindsAndRepairs(t *testing.T) {
	for what, corrupt := range compiler.Corruptions {
		t.Run(what, func(t *testing.T) {
			c := newChecked(t)
			wanted, generation := refs(c.compiler.Snapshot()), c.compiler.Snapshot().Generation
			if n, d := c.checkAll(); n < 39 || d != "" {
				t.Fatalf("before anything was wrong: %d Services, %s", n, d)
			}
			corrupt(c.compiler)
			_, difference := c.checkAll()
			t.Log(difference)
			if difference == "" {
				t.Fatal("the check finds nothing")
			}
			c.steer(c.compiler.Rebuild(c.tracker.State()))
			now, problems := c.compiler.Snapshot(), c.compiler.Problems()
			full, wantProblems, steer := c.compiler.Full(c.tracker.State())
			if got, want := describe(now, problems), describe(full, wantProblems); got != want {
				t.Errorf("the table is still wrong:\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
			}
			if got, want := c.compiler.HealthChecks(),
				c.compiler.FullHealthChecks(c.tracker.State()); !slices.Equal(got, want) {
				t.Errorf("health checks are still %+v", got)
			}
			c.kernel.Equal(t, &steer.Open)
			if now.Generation != generation+1 {
				t.Errorf("generation %d after %d", now.Generation, generation)
			}
			if got := refs(now); what != "a number given twice" && what != "a forgotten unit" &&
				!maps.Equal(got, wanted) {
				t.Errorf("endpoints have other numbers:\n%s", cmp.Diff(wanted, got))
			}
			c.add(50) // and it works on
			if now := c.compiler.Snapshot(); now.Generation != generation+2 {
				t.Errorf("generation %d after the next change", now.Generation)
			}
			if _, d := c.checkAll(); d != "" {
				t.Errorf("after the repair: %s", d)
			}
		})
	}
}
