package loop_test

import (
	"runtime"
	"testing"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// table is a compiler with a worker behind it that is always up to date.
type table struct {
	tracker   *tracker.Tracker
	compiler  *compiler.Compiler
	publisher *loop.Publisher
	handle    services.Handle
	worker    stats.Block
}

func newTable(tracker *tracker.Tracker) *table {
	t := &table{tracker: tracker, compiler: compiler.New(controltest.Config())}
	t.worker.Generation.Store(stats.Offline)
	t.publisher = loop.NewPublisher(&t.handle, []*stats.Block{&t.worker})
	return t
}

// pass takes in what the tracker has read.
func (t *table) pass() {
	t.compiler.Release(t.publisher.Oldest())
	s, _, _ := t.compiler.Compile(t.tracker.Changes())
	t.publisher.Publish(s)
}

// BenchmarkScaleFirst is the first table of a cluster whose objects are all read.
func BenchmarkScaleFirst(b *testing.B) {
	for _, s := range []controltest.Cluster{
		controltest.Large, {Services: 5_000, Endpoints: 6}, {Services: 1, Endpoints: 5_000},
	} {
		b.Run(s.String(), func(b *testing.B) {
			tracker := s.Tracker()
			changes := tracker.Changes()
			b.ReportAllocs()
			for b.Loop() {
				t := newTable(tracker)
				snapshot, _, _ := t.compiler.Compile(changes)
				t.publisher.Publish(snapshot)
			}
		})
	}
}

// BenchmarkScaleChange is one changed endpoint, from what was read of it to the table
// that workers use. Beside each small cluster stands one with 1,000 times the Services.
func BenchmarkScaleChange(b *testing.B) {
	for _, s := range []controltest.Cluster{
		{Services: 10, Endpoints: 10}, controltest.Large, {Services: 1, Endpoints: 100},
		{Services: 1_000, Endpoints: 100}, {Services: 1, Endpoints: 5_000},
	} {
		b.Run(s.String(), func(b *testing.B) {
			t := newTable(s.Tracker())
			t.pass()
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				n++
				var batch tracker.Batch
				batch.Upsert(controltest.Source, s.Slice(n*7919%s.Services, 0, n))
				b.StartTimer()
				t.tracker.Apply(&batch)
				t.pass()
			}
		})
	}
}

// BenchmarkScaleSelfCheck is one check of a few of 10,000 services against a table made
// from nothing.
func BenchmarkScaleSelfCheck(b *testing.B) {
	t := newTable(controltest.Large.Tracker())
	t.pass()
	b.ReportAllocs()
	for b.Loop() {
		if _, d := t.compiler.Check(t.tracker, t.handle.Load()); d != "" {
			b.Fatal(d)
		}
	}
}

// TestMemory holds the compiled table to its bound: 64 MiB of tables over backends.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 10,000 services")
	}
	changes := controltest.Large.Tracker().Changes()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := compiler.New(controltest.Config())
	s, _, _ := c.Compile(changes)
	runtime.GC()
	runtime.ReadMemStats(&after)
	tables, sets := 0, map[*services.EndpointSet]bool{}
	s.Frontends(func(f *services.Frontend) bool {
		if !sets[f.Outside.Set] {
			sets[f.Outside.Set] = true
			tables += 2 * cap(f.Outside.Set.Table)
		}
		return true
	})
	t.Logf("%v: tables over backends %.1f MiB, compiler and snapshot %.1f MiB in %d objects",
		controltest.Large, mib(tables), mib(int(after.HeapAlloc-before.HeapAlloc)),
		after.HeapObjects-before.HeapObjects)
	if len(sets) != controltest.Large.Services || tables > 64<<20 {
		t.Errorf("%d sets, tables of %.1f MiB", len(sets), mib(tables))
	}
	runtime.KeepAlive(c)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }
