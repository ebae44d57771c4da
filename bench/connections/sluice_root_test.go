//go:build root

package connections

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/launch"
)

// TestThroughSluice: connections through the daemon and over the wire are completed and timed, none
// fails, and both are saved.
func TestThroughSluice(t *testing.T) {
	c := Defaults()
	c.Systems, c.Rates, c.Services = []string{sluice, direct}, []int{500}, 300
	c.Repeat, c.Length = 1, 500*time.Millisecond
	c.JSON = filepath.Join(t.TempDir(), "connections.json")
	var err error
	if c.Sluice, err = launch.Build(t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	c.Out, c.Progress = out, new(bytes.Buffer)
	if err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	for i := range run.Points {
		switch p := &run.Points[i]; {
		case p.Metric == "failed" && p.Median() != 0, p.Metric == "completed" && p.Median() < 250,
			strings.Contains(p.Metric, "p50") && (p.Median() < 1 || p.Median() > 1e6):
			t.Errorf("%s: %s is %v", p.System, p.Metric, p.Samples)
		}
	}
	if n := len(run.Points); n != 2*len(figures) {
		t.Errorf("%d points were saved, want %d", n, 2*len(figures))
	}
	t.Log(out)
}
