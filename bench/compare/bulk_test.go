//go:build root

package compare

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/results"
)

// TestRunBulk transfers through a system of each kind: each has every figure of each load, and
// Sluice a ratio of rates to each of the others.
func TestRunBulk(t *testing.T) {
	systems := []string{ours, "l2fwd", "xdp-nat", "nftables", withOffloads}
	c := testConfig(systems...)
	var out bytes.Buffer
	c.Bulk, c.Rows, c.Out, c.JSON = true, StandardSenders()[:1], &out, filepath.Join(t.TempDir(), "run.json")
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	figures, against := map[string]int{}, map[string]int{}
	for _, p := range run.Points {
		switch {
		case p.Unit == "ratio":
			against[p.Params["against"]]++
			continue
		case p.Better == "higher" && p.Median() <= 0:
			t.Errorf("%s, %s %v: %g", p.System, p.Metric, p.Params, p.Median())
		}
		figures[p.System]++
	}
	for _, s := range systems {
		if want := len(bulkLoads) * len(bulkMetrics); figures[s] != want {
			t.Errorf("%s has %d figures, want %d", s, figures[s], want)
		}
	}
	const rateAndCPU = 2
	want := map[string]int{}
	for _, s := range systems[1:] {
		want[s] = rateAndCPU * len(bulkLoads)
	}
	if !maps.Equal(against, want) {
		t.Errorf("ratios %v, want %v", against, want)
	}
	lines := slices.Collect(strings.Lines(out.String()))
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "8 to the client") }) {
		t.Errorf("no line of eight streams to the client in\n%s", &out)
	}
}
