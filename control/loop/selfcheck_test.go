package loop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
)

// TestLoopChecksAndRepairs: what is wrong with the published table is found in time, reported,
// and gone with the next snapshot.
func TestLoopChecksAndRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var b tracker.Batch
		for i := range 40 {
			b.Upsert(controltest.Source, controltest.Service(i))
			b.Upsert(controltest.Source, controltest.Slice(i, 0))
		}
		r.tracker.Apply(&b)
		r.settle()
		before := r.handle.Load()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if c := r.SelfCheck(); c.Runs < 19 || c.Services < 39 || c.Differences != 0 || r.handle.Load() != before {
			t.Fatalf("before anything was wrong: %+v", c)
		}
		backend := func() *services.Backend {
			f, ok := r.handle.Load().FrontendByKey(vipKey(7))
			if !ok {
				t.Fatal("a frontend is gone")
			}
			return r.handle.Load().Backend(f.Outside.Set.Backends[3])
		}
		right := *backend()
		corrupt := func(*compiler.Config) { backend().Flags = 0 } // on the loop's goroutine
		if err := r.Configure(t.Context(), corrupt); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if c := r.SelfCheck(); c.Differences != 1 || c.Last == "" || r.Status().SelfCheck != c {
			t.Fatalf("after something was wrong: %+v", c)
		}
		if now := r.handle.Load(); *backend() != right || now.Generation != before.Generation+1 {
			t.Errorf("published: %+v in generation %d after %d, want %+v in the next", *backend(), now.Generation,
				before.Generation, right)
		}
		r.add(50) // and it works on
		if now := r.handle.Load(); now.Generation != before.Generation+2 || r.SelfCheck().Differences != 1 {
			t.Errorf("generation %d after the next change", now.Generation)
		}
		steer := compiler.New(controltest.Config())
		_, _, all := steer.Full(r.tracker.State())
		r.kernel.Equal(t, &all.Open)
	})
}
