package report

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

var update = flag.Bool("update", false, "rewrite golden files")

// known is a list with one experiment that the fixture has no run of.
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

var svg = regexp.MustCompile(`(?s)<svg.*?</svg>`)

func TestHTML(t *testing.T) {
	page, err := HTML(fixture(), known)
	if err != nil {
		t.Fatal(err)
	}
	// Plots are tested by themselves; their coordinates are the drawing library's.
	golden(t, "report.html", svg.ReplaceAll(page, []byte("<svg/>")))
	if n := len(svg.FindAll(page, -1)); n != len(figures(fixture())) {
		t.Errorf("%d plots in the page", n)
	}
}

// TestHTMLBeginsWithThePlot: the page begins with what was measured and a plot; verdicts, machines
// and failures follow.
func TestHTMLBeginsWithThePlot(t *testing.T) {
	page, err := HTML(fixture(), known)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, part := range []string{
		"<h2>What was measured", "<svg", "<h2>What is held", `<h2 id="absent"`, "<h2>Machine", "<h2>Every figure",
	} {
		at := strings.Index(string(page), part)
		if at <= last {
			t.Errorf("%q is at %d, what comes before it at %d", part, at, last)
		}
		last = at
	}
}

// TestHTMLNeedsNoNetwork: nothing in the page is loaded from elsewhere.
func TestHTMLNeedsNoNetwork(t *testing.T) {
	page, err := HTML(fixture(), known)
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`(?i)(src|href)\s*=\s*"[^#"][^"]*"|@import|url\(`).FindAllString(string(page),
		-1); found != nil {
		t.Errorf("the page loads %q", found)
	}
	if strings.Contains(string(page), "<script") {
		t.Error("the page has a script")
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
	page, err := HTML(runs, []Experiment{{Name: hostile + "2", About: hostile}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(page), "<script") || strings.Contains(string(page), `""><`) {
		t.Error("the page has what a name said, as markup")
	}
	if n := strings.Count(string(page), "&lt;script&gt;"); n < 10 {
		t.Errorf("the page says the name %d times", n)
	}
	text := figuresBlock(runs, nil, []headlineRow{{what: hostile, to: hostile}}, nil)
	code := "`" + strings.ReplaceAll(hostile, "`", "'") + "`"
	if rest := strings.Replace(text, code, "", 1); rest == text || strings.Contains(rest, "<script") {
		t.Errorf("the document has markup:\n%s", text)
	}
}

// TestLatenciesOfLoads: a line is a system at a load. Latencies at rates of somebody's choice
// (compare --at) have none, and must not pass for one another's.
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
		ratio   string
	}{
		{"no target", results.Point{Samples: []float64{1}}, "", ""},
		{"met", results.Point{Better: "lower", Samples: []float64{24}, Target: ptr(25)}, met, "0.96"},
		{"missed", results.Point{Better: "higher", Samples: []float64{1, 2, 1}, Target: ptr(2)}, missed, "0.50"},
		{"missed by little", results.Point{Better: "lower", Samples: []float64{1.252}, Target: ptr(1.25)}, missed,
			"1.0016"},
		{"without samples", results.Point{Better: "lower", Target: ptr(25)}, missed, ""},
		{"target zero", results.Point{Better: "lower", Samples: []float64{0}, Target: ptr(0)}, met, ""},
	} {
		r := rowOf(&c.point)
		if r.Verdict != c.verdict || r.Ratio != c.ratio {
			t.Errorf("%s: %q, of target %q; want %q, %q", c.name, r.Verdict, r.Ratio, c.verdict, c.ratio)
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
	if got := nines(99.9); got < 2.999 || got > 3.001 || nines(100) != mostNines || nines(0) != 0 {
		t.Errorf("99.9 is at %g", got)
	}
}

// TestNewestRunIsDrawn: a figure taken twice is drawn as it was the last time.
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

// TestBuildsInTurns: a ratio to an older build is shown with its interval and what that says; the
// target is held by the interval, and of what nothing can be said there is no verdict.
func TestBuildsInTurns(t *testing.T) {
	point := func(metric string, samples ...float64) results.Point {
		p := results.Point{Experiment: "pipeline", System: "sluice", Metric: metric, Unit: "ratio", Better: "lower",
			Samples: samples, Params: map[string]string{"to": paired.Before}}
		paired.Judge(&p)
		return p
	}
	run := &results.Run{Name: "pipeline", Points: []results.Point{
		point("within", 1.02, 1.04, 1.04, 1.04, 1.04, 1.05), point("slow", 1.1, 1.1, 1.1, 1.1, 1.1, 1.2),
		point("short", 1, 1),
	}}
	list := rows([]*results.Run{run})
	for i, want := range []struct{ verdict, spread string }{
		{met, "; 96.9 % interval 1.020 to 1.050; unchanged within 3 %"},
		{missed, "; 96.9 % interval 1.100 to 1.200; slower by more than 3 %"},
		{"", "; too few repetitions to say: 2, and at least 6 have an interval of 95 %"},
	} {
		if got := list[i]; got.Verdict != want.verdict || !strings.HasSuffix(got.Spread, want.spread) {
			t.Errorf("%s: %q, %q, want %+v", got.What, got.Verdict, got.Spread, want)
		}
	}
	text := figuresBlock([]*results.Run{run}, nil, nil, nil)
	if !strings.Contains(text, "| slow to sluice-before; slower by more than 3 % | ≤ 1.03 | 1.10 | **missed** |") {
		t.Error(text)
	}
}
