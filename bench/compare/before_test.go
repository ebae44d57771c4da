//go:build root

package compare

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

// TestRunBefore compares the tree's own build with itself: both builds forward, in pairs, and the
// table, the file and the note contain them. Beside other tests a round may have no sample.
func TestRunBefore(t *testing.T) {
	c := testConfig()
	var out, progress bytes.Buffer
	c.Before, c.Rates, c.Repeat = filepath.Dir(sluiceBinary), true, paired.FewestPairs+2
	c.Out, c.Progress, c.JSON = &out, &progress, filepath.Join(t.TempDir(), "run.json")
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, p := range run.Points {
		found[p.System+" "+p.Metric] = len(p.Samples)
		if p.Unit == "ratio" && (p.Interval == nil || p.Interval.Low > p.Median() || p.Interval.High < p.Median() ||
			p.Remark == "") {
			t.Errorf("%s: interval %+v around %g, %q", p.Metric, p.Interval, p.Median(), p.Remark)
		}
	}
	for _, name := range []string{"sluice rate", paired.Before +
		" rate", "sluice ratio of rates", "sluice ratio of cpu_per_packet at the highest rate"} {
		if n := found[name]; n < paired.FewestPairs || n > c.Repeat {
			t.Errorf("%s has %d samples, want %d to %d", name, n, paired.FewestPairs, c.Repeat)
		}
	}
	// Progress lines less than a second apart are left out, so the test cannot know which rounds
	// are printed.
	if !strings.Contains(run.Machine.Notes, "the same file as now") || !strings.Contains(progress.String(),
		": "+paired.Before) {
		t.Errorf("notes %q, progress:\n%s", run.Machine.Notes, &progress)
	}
	if !strings.Contains(out.String(), "verdict of 2 figures: ") {
		t.Errorf("no verdict in\n%s", &out)
	}
}

// TestBeforeIsRefused checks that a wrong path is rejected before anything is built.
func TestBeforeIsRefused(t *testing.T) {
	c := testConfig()
	c.Before = benchBinary
	var progress bytes.Buffer
	c.Progress = &progress
	_, err := Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(),
		"cmd/sluice-bench, and sluice.dev/sluice/cmd/sluice is to be compared") || progress.Len() > 0 {
		t.Errorf("%v; progress %q", err, &progress)
	}
}
