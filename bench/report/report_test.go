package report

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

var update = flag.Bool("update", false, "rewrite golden files")

// known is a list with one experiment that has no run in the fixture.
var known = []Experiment{
	{Name: "pipeline"}, {Name: "compare"}, {Name: "steps"}, {Name: "latency-at"},
	{Name: "updates", About: "how long <changes> take", Full: []string{"updates"}},
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs; if it should, run with -update and review:\n%s", name, d)
	}
}

func TestEscapes(t *testing.T) {
	const hostile = `"><script>alert(1)</script>|*_` + "`"
	runs := []*results.Run{{
		Name: hostile, Command: hostile, Failed: hostile, Version: hostile,
		Machine: results.Machine{CPU: hostile, Notes: hostile, Link: hostile},
		Points: []results.Point{
			{Experiment: hostile, System: hostile, Params: map[string]string{hostile: hostile, "flows": "1"},
				Metric: hostile, Unit: hostile, Samples: []float64{1}, Target: ptr(2)},
			{Experiment: hostile, System: hostile, Params: map[string]string{hostile: hostile, "flows": "9"},
				Metric: hostile, Unit: hostile, Samples: []float64{1}, Target: ptr(2)},
		},
	}}
	text := figuresBlock([]generation{{title: hostile, runs: runs}}, nil, nil)
	var ratios strings.Builder
	writeHeadlines(&ratios, []generation{{title: hostile}}, []headlineRow{{what: hostile, to: hostile}}, "")
	text += ratios.String()
	code := "`" + strings.ReplaceAll(hostile, "`", "'") + "`"
	if rest := strings.Replace(text, code, "", 1); rest == text || strings.Contains(rest, "<script") {
		t.Errorf("the document has markup:\n%s", text)
	}
}

// TestWriteHasEveryFigure: for a run with many figures without a bound, a document only gives their
// number, and Write prints each.
func TestWriteHasEveryFigure(t *testing.T) {
	run := &results.Run{Name: "pipeline", Command: "sluice-bench pipeline"}
	for i := range unboundedRows + 1 {
		run.Points = append(run.Points, results.Point{Experiment: "pipeline", System: "sluice",
			Metric: fmt.Sprintf("metric %d!", i), Unit: "ns", Samples: []float64{float64(i)}})
	}
	var all strings.Builder
	if err := Write(&all, []*results.Run{run}, known); err != nil {
		t.Fatal(err)
	}
	block := figuresBlock(one([]*results.Run{run}, known), known, nil)
	for i := range run.Points {
		row := fmt.Sprintf("| sluice, metric %d! | %d ns |", i, i)
		if !strings.Contains(all.String(), row) || strings.Contains(block, row) {
			t.Errorf("%q: printed %t, in a document %t", row, strings.Contains(all.String(), row),
				strings.Contains(block, row))
		}
	}
	if !strings.Contains(block, fmt.Sprintf("%d figures without a bound", len(run.Points))) {
		t.Errorf("the document does not count them:\n%s", block)
	}
	if !strings.Contains(all.String(), "- updates: not measured (how long &lt;changes&gt; take)") {
		t.Errorf("an experiment that was not run is missing:\n%s", all.String())
	}
}

// TestLatenciesOfLoads: a line is a system at a load. Latencies at rates chosen by the user
// (compare --at) have no load, and must not be mixed with the others.
func TestLatenciesOfLoads(t *testing.T) {
	run := &results.Run{Points: []results.Point{
		{System: "sluice", Metric: "no_drop_rate", Samples: []float64{0.5}},
		{System: "sluice", Params: map[string]string{"load": "10"}, Metric: "one-way, p50", Samples: []float64{7}},
		{System: "sluice", Params: map[string]string{"load": "10"}, Metric: "one-way, p99", Samples: []float64{9}},
		{System: "sluice", Params: map[string]string{"load": "50"}, Metric: "one-way, p50", Samples: []float64{8}},
		{System: "sluice", Params: map[string]string{"rate": "20000"}, Metric: "one-way, p50", Samples: []float64{1}},
		{System: "sluice", Params: map[string]string{"rate": "50000"}, Metric: "one-way, p50", Samples: []float64{2}},
	}}
	var b strings.Builder
	latenciesOf(run).write(&b)
	want := "| one-way latency, us | no-drop Mpps | load % | p50 | p99 |\n| --- | --- | --- | --- | --- |\n" +
		"| sluice | 0.50 | 10 | 7 | 9 |\n| sluice | 0.50 | 50 | 8 |  |\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name    string
		point   results.Point
		verdict string
	}{
		{"no target", results.Point{Samples: []float64{1}}, ""},
		{"met", results.Point{Better: "lower", Samples: []float64{24}, Target: ptr(25)}, met},
		{"missed", results.Point{Better: "higher", Samples: []float64{1, 2, 1}, Target: ptr(2)}, missed},
		{"missed by little", results.Point{Better: "lower", Samples: []float64{1.252}, Target: ptr(1.25)}, missed},
		{"without samples", results.Point{Better: "lower", Target: ptr(25)}, missed},
		{"target zero", results.Point{Better: "lower", Samples: []float64{0}, Target: ptr(0)}, met},
	} {
		if got := verdict(&c.point); got != c.verdict {
			t.Errorf("%s: %q, want %q", c.name, got, c.verdict)
		}
	}
}

func TestNumbers(t *testing.T) {
	for text, want := range map[string]float64{"1000": 1000, "1k": 1000, "10M": 1e7, "50 %": 50, "0.5": 0.5} {
		if got, ok := number(text); !ok || got != want {
			t.Errorf("%q is %g, %t", text, got, ok)
		}
	}
	if _, ok := number("many"); ok {
		t.Error(`"many" is a number`)
	}
	for v, want := range map[float64]string{
		0: "0", 1e6: "1.00M", 12345: "12.3k", 1234.5: "1234", 123.45: "123.5", 12.345: "12.3", 1.2345: "1.23",
		0.01234: "0.012", 1500: "1500",
	} {
		if got := figureText(v); got != want {
			t.Errorf("%g is %q, want %q", v, got, want)
		}
	}
}

// TestNewestRunIsDrawn: of a figure measured twice, the newest is drawn.
func TestNewestRunIsDrawn(t *testing.T) {
	runs := fixture()
	again := *runs[0]
	again.Began = again.Began.Add(time.Hour)
	again.Points = []results.Point{again.Points[0]}
	again.Points[0].Samples = []float64{7}
	for _, f := range figures(append(runs, &again)) {
		if strings.HasSuffix(f.Name, "-by-flows") {
			if got := f.Series[0].Pairs; len(got) != 3 || got[0] != [2]float64{1000, 7} {
				t.Errorf("drawn %v", got)
			}
			return
		}
	}
	t.Error("no figure by flows")
}

// TestBuildsInTurns: a ratio to an older build is shown with its interval's verdict; the interval
// decides whether the target is met, and without an interval there is no verdict.
func TestBuildsInTurns(t *testing.T) {
	point := func(metric string, samples ...float64) results.Point {
		p := results.Point{Experiment: "pipeline", System: "sluice", Metric: metric, Unit: "ratio", Better: "lower",
			Samples: samples, Params: map[string]string{"to": paired.Before}}
		paired.SetVerdict(&p)
		return p
	}
	run := &results.Run{Name: "pipeline", Points: []results.Point{
		point("within", 1.02, 1.04, 1.04, 1.04, 1.04, 1.05), point("slow", 1.1, 1.1, 1.1, 1.1, 1.1, 1.2),
		point("short", 1, 1),
	}}
	for i, want := range []string{met, missed, ""} {
		if got := verdict(&run.Points[i]); got != want {
			t.Errorf("%s: %q, want %q", run.Points[i].Metric, got, want)
		}
	}
	var report strings.Builder
	if err := Write(&report, []*results.Run{run}, nil); err != nil {
		t.Fatal(err)
	}
	text := report.String()
	if !strings.Contains(text, "| slow to sluice-before; slower by more than 3 % | ≤ 1.03 | **1.10** |") {
		t.Error(text)
	}
}
