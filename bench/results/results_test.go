package results_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice.dev/sluice/bench/results"
)

func TestSaveLoad(t *testing.T) {
	bound := 1.25
	want := &results.Run{Command: "sluice-bench pipeline", Stolen: 0.25, Machine: results.Machine{Cores: 2},
		Points: []results.Point{
			{Experiment: "pipeline", System: "sluice", Params: map[string]string{"flows": "1000"}, Metric: "ratio",
				Unit:   "ratio",
				Better: "lower", Samples: []float64{1.3, 1.1, 1.2}, Target: &bound,
				Interval: &results.Interval{Low: 1.1, High: 1.3, Confidence: 0.75}},
		}}
	path := filepath.Join(t.TempDir(), "run.json")
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := results.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(results.Run{})); d != "" {
		t.Fatal(d)
	}
}

// TestStolen: a run records the time taken by the hypervisor meanwhile; here that is little, and
// never more than all.
func TestStolen(t *testing.T) {
	run := results.Begin("memory")
	time.Sleep(20 * time.Millisecond) // the measured interval
	if err := run.Finish(""); err != nil || run.Stolen < 0 || run.Stolen > 1 {
		t.Errorf("%g of all processors, %v", run.Stolen, err)
	}
}

func TestMedianAndTarget(t *testing.T) {
	bound := 2.0
	for _, c := range []struct {
		name    string
		samples []float64
		better  string
		median  float64
		met     bool
	}{
		{"odd", []float64{9, 1, 2}, "lower", 2, true},
		{"even", []float64{4, 1, 2, 9}, "lower", 3, false},
		{"higher is better", []float64{3}, "higher", 3, true},
		{"higher is better, missed", []float64{1}, "higher", 1, false},
		{"none", nil, "lower", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := results.Point{Samples: c.samples, Better: c.better, Target: &bound}
			if got := p.Median(); got != c.median {
				t.Errorf("median %v, want %v", got, c.median)
			}
			if got := p.Met(); got != c.met {
				t.Errorf("met %v, want %v", got, c.met)
			}
		})
	}
}

// TestIntervalAndTarget: if there is an interval, its better end decides, not the median.
func TestIntervalAndTarget(t *testing.T) {
	bound := 2.0
	for _, c := range []struct {
		low, high float64
		better    string
		met       bool
	}{
		{1, 3, "higher", true}, {1, 1.9, "higher", false}, {1, 3, "lower", true}, {2.1, 3, "lower", false},
	} {
		p := results.Point{Samples: []float64{(c.low + c.high) / 2}, Better: c.better, Target: &bound,
			Interval: &results.Interval{Low: c.low, High: c.high}}
		if got := p.Met(); got != c.met {
			t.Errorf("%g to %g, %s is better: met %t", c.low, c.high, c.better, got)
		}
	}
}
