package control_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestSelfCheckRaisesNoFalseAlarm: whatever random objects led to, the check of every
// Service finds that it is right.
func TestSelfCheckRaisesNoFalseAlarm(t *testing.T) {
	w := newWorld(t)
	tracker, compiler := control.NewTracker(), control.NewCompiler(testConfig())
	for n := range 10_000 {
		w.step(tracker)
		if w.chance(2) {
			_ = compiler.Drain(control.Drain{Addr: header.AddrFrom4([4]byte{10, 0, 0, byte(1 + w.one(24))})})
		}
		compiler.Compile(tracker.Changes())
		if n%20 != 0 {
			continue
		}
		if d := compiler.CheckAll(tracker); d != "" {
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

// checked is a loop over a few Services, one of which has something of everything.
func checked(t *testing.T) *rig {
	r := newRig(t, nil)
	var b control.Batch
	s, e := localService(1, 31000, "gw-1", "gw-2", "gw-1")
	s.Spec.Ports[1].Protocol = corev1.ProtocolTCP
	e.Endpoints[1].Addresses[0] = "127.0.0.1" // a problem of its own
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	internal := s.DeepCopy()
	internal.Spec.ClusterIPs = []string{"203.0.113.77"}
	internal.Spec.IPFamilies = nil
	b.Upsert(benchSource, internal)
	b.Upsert(benchSource, e)
	for i := range 40 { // so that numbers are not those of a table made from nothing
		r.add(i)
		r.remove(i)
	}
	for i := 2; i < 40; i++ {
		b.Upsert(benchSource, benchService(i))
		b.Upsert(benchSource, benchSlice(i, 0))
	}
	r.tracker.Apply(&b)
	r.settle()
	return r
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

func TestSelfCheckFindsAndRepairs(t *testing.T) {
	for what, corrupt := range control.Corruptions {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := checked(t)
				if err := r.Configure(t.Context(), func(c *control.CompilerConfig) { c.ClusterIPs = true }); err != nil {
					t.Fatal(err)
				}
				wanted, generation := refs(r.handle.Load()), r.handle.Load().Generation
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if c := r.SelfCheck(); c.Runs < 19 || c.Services < 39 || c.Differences != 0 {
					t.Fatalf("before anything was wrong: %+v", c)
				}
				do := func(f func()) {
					t.Helper()
					if err := r.Do(t.Context(), f); err != nil {
						t.Fatal(err)
					}
				}
				do(func() { corrupt(r.Compiler) })
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				c := r.SelfCheck()
				t.Log(c.Last)
				if c.Differences != 1 || c.Last == "" || r.Status().SelfCheck != c {
					t.Fatalf("after something was wrong: %+v", c)
				}
				var full *services.Snapshot
				var problems, wantProblems []control.Problem
				var steer *control.Steer
				var checks, wantChecks []control.HealthCheck
				do(func() {
					full, wantProblems, steer = r.Compiler.Full(r.tracker.State())
					problems = r.Compiler.Problems()
					checks, wantChecks = r.Compiler.HealthChecks(), r.Compiler.FullHealthChecks(r.tracker.State())
				})
				now := r.handle.Load()
				if got, want := describe(now, problems), describe(full, wantProblems); got != want {
					t.Errorf("what is published is still wrong:\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
				}
				if !slices.Equal(checks, wantChecks) {
					t.Errorf("health checks are still %+v", checks)
				}
				r.kernel.equal(t, &steer.Open)
				if now.Generation != generation+1 {
					t.Errorf("generation %d after %d", now.Generation, generation)
				}
				if got := refs(now); what != "a number given twice" && what != "a forgotten unit" && !maps.Equal(got, wanted) {
					t.Errorf("endpoints have other numbers:\n%s", cmp.Diff(wanted, got))
				}
				r.add(50) // and it works on
				if now := r.handle.Load(); now.Generation != generation+2 || r.SelfCheck().Differences != 1 {
					t.Errorf("generation %d after the next change", now.Generation)
				}
			})
		})
	}
}
