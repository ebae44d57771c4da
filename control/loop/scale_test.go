package loop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/size"
)

// TestScale holds the processor time of changes to bounds, and prints it: time on the clock grows
// with whatever else the machine does. The bench of the same name is for figures to compare.
//
//	go test ./control/loop -run TestScale -v
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 10,000 services")
	}
	for _, s := range []controltest.Cluster{
		controltest.Large, {Services: 5_000, Endpoints: 6}, {Services: 1, Endpoints: 5_000},
	} {
		t.Run("first/"+s.String(), func(t *testing.T) {
			if took := firstTable(s); took > slow(3*time.Second) {
				t.Errorf("the first table took %v", took)
			} else {
				t.Logf("the first table took %v", took)
			}
		})
	}
	t.Run("self check", func(t *testing.T) {
		table := newTable(controltest.Large.Tracker())
		table.pass()
		took := make([]time.Duration, 101)
		for n := range took {
			took[n] = machine.CPUTime(func() {
				if _, d := table.compiler.Check(table.tracker, table.handle.Load()); d != "" {
					t.Fatal(d)
				}
			})
		}
		slices.Sort(took)
		t.Logf("a check takes %v", took[50])
		if took[50] > slow(3*time.Millisecond) {
			t.Errorf("a check of a few services takes %v", took[50])
		}
	})
	t.Run("change", func(t *testing.T) {
		few, many := oneChange(controltest.Cluster{Services: 10, Endpoints: 10}), oneChange(controltest.Large)
		t.Logf("one of 10 endpoints: %v among 10 services, %v among 10,000", few, many)
		if many > 4*few+slow(100*time.Microsecond) {
			t.Errorf("a change costs %v among 10 services and %v among 10,000", few, many)
		}
		hundred := oneChange(controltest.Cluster{Services: 1_000, Endpoints: 100})
		t.Logf("one of 100 endpoints: %v among 1,000 services", hundred)
		if hundred > slow(2*time.Millisecond) {
			t.Errorf("a change of a service of 100 endpoints costs %v", hundred)
		}
	})
}

// slow is a bound under the race detector, which costs about ten times.
func slow(d time.Duration) time.Duration {
	if size.Race {
		return 20 * d
	}
	return d
}

// firstTable is the processor time of the loop's first pass when all is read, the best of three.
func firstTable(s controltest.Cluster) time.Duration {
	best := time.Hour
	for range 3 {
		table := newTable(s.Tracker())
		runtime.GC() // what made the objects is not part of it
		best = min(best, machine.CPUTime(table.pass))
	}
	return best
}

// oneChange is the median of the processor time that a change of one endpoint takes.
func oneChange(s controltest.Cluster) time.Duration {
	table := newTable(s.Tracker())
	table.pass()
	runtime.GC()
	took := make([]time.Duration, 301)
	for n := range took {
		var b tracker.Batch
		b.Upsert(controltest.Source, s.Slice(n*7919%s.Services, 0, n+1))
		took[n] = machine.CPUTime(func() {
			table.tracker.Apply(&b)
			table.pass()
		})
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// delays notes how old what changed is when it is published and steered by.
type delays struct {
	first chan struct{}
	all   []time.Duration // only the loop writes, until it has ended
	took  []time.Duration
}

func (d *delays) Synced(s *loop.Sync) {
	now := time.Now()
	if s.Full {
		close(d.first)
		return
	}
	for _, at := range s.Triggers {
		d.all = append(d.all, now.Sub(at))
	}
	d.took = append(d.took, s.Took)
}

// TestUpdateLatency sends 1,000 changes a second to a running loop over 10,000 services
// and asks how long each takes from the source's word to the table in use. With
// SLUICE_E2E=full it does so for 30 seconds. One of some tries counts.
//
//	go test ./control/loop -run TestUpdateLatency -v
func TestUpdateLatency(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 10,000 services")
	}
	seconds := 3
	if os.Getenv("SLUICE_E2E") == "full" {
		seconds = 30
	}
	problem := ""
	for range latencyTries {
		if problem = updateLatency(t, seconds); problem == "" {
			return
		}
		t.Log(problem)
	}
	t.Errorf("in each of %d tries %s", latencyTries, problem)
}

// latencyTries is how often a latency may miss its bound: what takes too long does so each time,
// what another process holds up does not.
const latencyTries = 5

// updateLatency sends changes for some seconds, and returns what is wrong with how long they took.
func updateLatency(t *testing.T, seconds int) (problem string) {
	t.Helper()
	const perSecond = 1_000
	d := &delays{first: make(chan struct{})}
	table := newTable(controltest.Large.Tracker())
	loop, stop := table.run(t, d)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	noise, used := oversleep(), usage(t)
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	sent := 0
	for start := time.Now(); sent < seconds*perSecond; <-tick.C {
		// A ticker that fell behind loses ticks; what is due is sent all the same.
		for due := int(time.Since(start).Seconds() * perSecond); sent < min(due, seconds*perSecond); sent++ {
			table.change(controltest.Large, sent)
		}
	}
	if err := loop.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	slept, part := noise(), ran(t, used)
	stop()
	return report(t, d, sent, slept, part, &before, &after)
}

func usage(t *testing.T) observer.Usage {
	t.Helper()
	u, err := observer.ProcessUsage(os.Getpid())
	if err != nil && !errors.Is(err, observer.ErrOneProcessor) { // pinned threads do not matter here
		t.Fatal(err)
	}
	return u
}

// ran is the part of the time that threads of this process ran since before, of the time that they
// ran or waited for a CPU: a latency is as much shorter where they need not wait.
func ran(t *testing.T, before observer.Usage) float64 {
	t.Helper()
	u := usage(t).Sub(before)
	part := float64(u.Own) / float64(max(u.Own+u.Waited, 1))
	t.Logf("threads ran %v and waited %v for a CPU", u.Own, u.Waited)
	return part
}

// run runs a loop over the table, as the daemon does, and returns it after its first pass. stop
// ends it.
func (t *table) run(tb testing.TB, d *delays) (l *loop.Loop, stop func()) {
	tb.Helper()
	l = loop.New(loop.Config{
		Log: slog.New(slog.DiscardHandler), Tracker: t.tracker, Compiler: t.compiler,
		Publisher: t.publisher, Steering: controltest.NewKernel(), Observer: d, Window: 2 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	<-d.first
	return l, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			tb.Error(err)
		}
	}
}

// change applies the n-th change of a cluster's endpoints, which is of now.
func (t *table) change(c controltest.Cluster, n int) {
	s := c.Slice(n*7919%c.Services, 0, n/c.Services+1)
	s.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano),
	}
	t.tracker.Upsert(controltest.Source, s)
}

// oversleep measures how late a goroutine beside wakes that sleeps a millisecond: what the
// machine and the runtime add to everything that waits. It returns what ends it.
func oversleep() func() []time.Duration {
	stop, result := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var late []time.Duration
		for {
			start := time.Now()
			select {
			case <-stop:
				slices.Sort(late)
				result <- late
				return
			case <-time.After(time.Millisecond):
				late = append(late, time.Since(start)-time.Millisecond)
			}
		}
	}()
	return func() []time.Duration { close(stop); return <-result }
}

func report(
	t *testing.T, d *delays, sent int, slept []time.Duration, part float64, before, after *runtime.MemStats,
) (problem string) {
	if len(d.all) != sent {
		t.Errorf("%d changes were sent, %d published", sent, len(d.all))
	}
	slices.Sort(d.all)
	slices.Sort(d.took)
	p99 := quantile(d.all, 99)
	t.Logf("%d changes in %d passes: p50 %v, p99 %v, max %v; a pass p50 %v, p99 %v, max %v", len(d.all), len(d.took),
		quantile(d.all, 50), p99, d.all[len(d.all)-1], quantile(d.took, 50), quantile(d.took, 99),
		d.took[len(d.took)-1])
	longest := time.Duration(0)
	for n := before.NumGC; n < after.NumGC; n++ {
		longest = max(longest, time.Duration(after.PauseNs[n%uint32(len(after.PauseNs))]))
	}
	t.Logf("heap %.0f MiB in use, %.0f MiB from the system; %d collections stopped the world %v in all, %v at most",
		mib(int(after.HeapInuse)), mib(int(after.Sys)), after.NumGC-before.NumGC,
		time.Duration(after.PauseTotalNs-before.PauseTotalNs), longest)
	late := slept[len(slept)-1]
	t.Logf("a goroutine that only sleeps woke p50 %v, p99 %v, max %v late", quantile(slept, 50), quantile(slept, 99),
		late)
	// One stop of 30 ms is a percent of three seconds: with another one beside us, p99 says
	// how long those are.
	if undisturbed := time.Duration(float64(p99) * part); undisturbed > slow(10*time.Millisecond)+2*late {
		return fmt.Sprintf("p99 is %v, %v if no thread had to wait for a CPU, on a machine that wakes sleepers up to "+
			"%v late", p99, undisturbed, late)
	}
	return ""
}

func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)-1)*percent/100].Round(time.Microsecond)
}
