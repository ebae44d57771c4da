//go:build root

package l2fwd

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/results"
)

// TestMeasureKnobs runs the experiment in its shortest form: figures are positive, a table is
// printed and the results can be loaded again.
func TestMeasureKnobs(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "knobs.json")
	e := Experiment{Out: &out, JSON: file, Repeat: 1, Window: 400 * time.Millisecond, Warmup: 200 * time.Millisecond,
		Steps:    200,
		Variants: []string{"budget 32", "threaded gateway"}, SourceCPU: -1, WorkerCPU: 0}
	must(t, MeasureKnobs(t.Context(), e))
	run, err := results.Load(file)
	must(t, err)
	for _, p := range run.Points {
		if p.Metric != "lost" && p.Median() <= 0 {
			t.Errorf("%s of %v is %v", p.Metric, p.Params, p.Samples)
		}
	}
	if len(run.Points) != 3*8 || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%d points\n%s", len(run.Points), &out)
	}
	e.Variants = []string{"warp"}
	if err := MeasureKnobs(t.Context(), e); err == nil {
		t.Error("a knob that is none was measured")
	}
}

// TestIdle: a worker without traffic costs less than a hundredth of a core. CPU time of the thread
// is what is held, which neighbours on the machine do not add to.
func TestIdle(t *testing.T) {
	e := Experiment{SourceCPU: -1, WorkerCPU: 0, Window: time.Second, Warmup: 100 * time.Millisecond}
	o, err := e.at(t.Context(), -1, 0)
	must(t, err)
	if core := 100 * o.worker.Seconds() / o.seconds; core >= idleTarget || o.received != 0 {
		t.Errorf("an idle worker uses %.2f %% of a core, %d packets came", core, o.received)
	}
}

// TestFloodCounts: at a low rate every packet that is sent arrives once, and latencies are
// counted for each. A source that others held up sends less in the window, or makes up for what was
// due before it: one of several trials counts.
func TestFloodCounts(t *testing.T) {
	load := flood{rate: 2000, sourceCPU: -1, warmup: 200 * time.Millisecond, window: 500 * time.Millisecond}
	load.queues = 2
	var problem string
	for range 10 {
		o, err := load.run(t.Context())
		must(t, err)
		problem = ""
		if sent := float64(o.sent) / o.seconds; sent < 1000 || sent > 4000 {
			problem = fmt.Sprintf("sent %.0f packets a second, want about 2000", sent)
		}
		// What is under way at one reading and not at the other.
		if slack := int64(o.sent) - int64(o.received); slack < -200 || slack > 200 || o.received == 0 ||
			o.latency.quantile(0.5) == 0 {
			problem = fmt.Sprintf("%d sent, %d received, p50 %s", o.sent, o.received, o.latency.quantile(0.5))
		}
		if problem == "" {
			return
		}
	}
	t.Error(problem)
}

// TestSpinAsWorked: packets that come alone cost little spinning, and all arrive. A worker that
// always spins has no more of its CPU than others leave to it: one of several trials counts.
func TestSpinAsWorked(t *testing.T) {
	core := map[bool]float64{}
	for range 10 {
		for _, asWorked := range []bool{false, true} {
			load := flood{rate: 2000, sourceCPU: -1, warmup: 200 * time.Millisecond, window: 500 * time.Millisecond}
			load.queues, load.config.SpinAsWorked = 1, asWorked
			load.config.Spin = 10 * time.Millisecond // longer than packets are apart
			o, err := load.run(t.Context())
			must(t, err)
			core[asWorked] = o.worker.Seconds() / o.seconds
			if o.received == 0 || asWorked && o.sleeps == 0 {
				t.Errorf("as worked %v: %d packets, %d sleeps", asWorked, o.received, o.sleeps)
			}
		}
		if core[true] <= core[false]/2 {
			return
		}
	}
	t.Errorf("the worker used %.0f %% of a core, and %.0f %% where it always spins", 100*core[true], 100*core[false])
}
