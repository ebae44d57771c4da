package report

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/bench/results"
)

const root = "../.." // of the source tree

// folders hold the committed runs of one machine each: the columns of the documents.
var folders = []string{"bench/baselines", "bench/baselines/zen3"}

// baselines are the committed runs of one machine.
func baselines(t *testing.T, folder string) []*results.Run {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no baselines in %s (%v): `make -C bench full` makes them", folder, err)
	}
	runs, err := results.LoadAll(files...)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// columnsOfDocs are the generations of the committed runs.
func columnsOfDocs(t *testing.T) []generation {
	t.Helper()
	var sets [][]*results.Run
	for _, folder := range folders {
		sets = append(sets, baselines(t, folder))
	}
	gens, err := generationsOf(sets, Experiments(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return gens
}

// one is a generation of runs in the order of the known experiments.
func one(runs []*results.Run, known []Experiment) []generation {
	return []generation{{title: "Test CPU", runs: inOrder(runs, known)}}
}

func TestCompose(t *testing.T) {
	gens := one(fixture(), known)
	older := fixture()[1:2] // another machine, with a single experiment
	older[0].Command, older[0].Points = "sluice-bench compare --repeat 9", older[0].Points[:8]
	older[0].Points[6].Samples = []float64{1.5}
	older[0].Points[0].Params["services"] = "2"
	d, err := compose(append(gens, generation{title: "Older CPU", runs: older}), known)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "readme.md", []byte(d.readme))
	golden(t, "benchmarks.md", []byte(d.figures))
	if len(d.plots[docPlots[1].file]) == 0 || d.plots[docPlots[0].file] != nil {
		t.Errorf("of a run pipeline and none of services there are %d plots", len(d.plots))
	}
}

// TestFiguresBeginWithThePlot: docs/benchmarks.md begins with the machines and a plot, followed by
// tables.
func TestFiguresBeginWithThePlot(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, figuresFile))
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, part := range []string{"## Machines and runs", "![", "## Every experiment"} {
		at := strings.Index(string(text), part)
		if at <= last {
			t.Errorf("%q is at %d, its predecessor at %d", part, at, last)
		}
		last = at
	}
}

// TestShortRunIsMarked: figures of a short run are marked as such.
func TestShortRunIsMarked(t *testing.T) {
	for _, short := range []bool{false, true} {
		runs := fixture()
		if short {
			runs[1].Machine.Notes = "at night; " + ShortRun
		}
		d, err := compose(one(runs, known), known)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(d.figures, "claims no figure") != short {
			t.Errorf("short %t: %s", short, d.figures)
		}
	}
}

// TestDocs: README.md, docs/benchmarks.md and docs/plots agree with the committed baselines.
func TestDocs(t *testing.T) {
	d, err := compose(columnsOfDocs(t), Experiments())
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{readmeFile: d.readme, figuresFile: d.figures} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), blockBegins+"\n")
		have, _, _ := strings.Cut(rest, blockEnds+"\n")
		if have = blockBegins + "\n" + have + blockEnds + "\n"; have != want {
			t.Errorf("%s differs from bench/baselines; `make -C bench figures` rewrites it:\n%s", file, cmp.Diff(want, have))
		}
	}
	folder, err := os.ReadDir(filepath.Join(root, plotsFolder))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folder {
		if d.plots[f.Name()] == nil {
			t.Errorf("%s/%s is drawn from no baseline", plotsFolder, f.Name())
		}
	}
	for name, want := range d.plots {
		have, err := os.ReadFile(filepath.Join(root, plotsFolder, name))
		if err != nil || string(have) != string(want) {
			t.Errorf("%s/%s differs from bench/baselines (%v); `make -C bench figures` redraws it", plotsFolder, name, err)
		}
	}
}

// TestReadmeRatios: each ratio of README, for each processor, is the worst median of its points in
// the committed JSON, which the test reads without the generator.
func TestReadmeRatios(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, readmeFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		row, run, metric string
		params           map[string]string
	}{
		{"a C program", "pipeline", "ratio", map[string]string{
			"scenario": "steady", "to": "c-reference", "family": "ipv4", "flows": "1000000", "headers": "cold",
			"packets": "both"}},
		{"packets per second, one way | kube-proxy", "compare", "ratio of rates",
			map[string]string{"against": "kube-proxy-nftables"}},
		{"the same | NAT", "compare", "ratio of rates", map[string]string{"against": "xdp-nat"}},
		{"p99 latency | nftables", "latency-at", "ratio of one-way, p99",
			map[string]string{"against": "nftables with RPS"}},
		{"the same, p99.9 | nftables", "latency-at", "ratio of one-way, p99.9",
			map[string]string{"against": "nftables with RPS"}},
		{"the same with one Service", "pipeline", "ratio", map[string]string{
			"scenario": "services", "to": "1", "flows": "1000000", "backends": ""}},
	} {
		_, rest, ok := strings.Cut(string(text), "| "+c.row)
		cells := strings.Split(strings.SplitN(rest, "\n", 2)[0], " | ")
		if !ok || len(cells) < 2+len(folders) {
			t.Errorf("README has no row of a ratio to %s", c.row)
			continue
		}
		for i, folder := range folders {
			shown := strings.TrimSuffix(cells[2+i], ", **missed**")
			if want := worstMedian(t, folder, c.run, c.metric, c.params); shown != want {
				t.Errorf("README says %s of %s, and %s/%s.json %s", shown, c.row, folder, c.run, want)
			}
		}
	}
}

// worstMedian is the worst ratio for Sluice among its points with the params, or a dash if the
// folder does not have the run.
func worstMedian(t *testing.T, folder, name, metric string, params map[string]string) string {
	t.Helper()
	run, err := results.Load(filepath.Join(root, folder, name+".json"))
	if errors.Is(err, os.ErrNotExist) && folder != folders[0] {
		return notMeasured
	}
	if err != nil {
		t.Fatal(err)
	}
	var medians []float64
	higher := false
	for _, p := range run.Points {
		same := p.Metric == metric && p.System == "sluice"
		for name, value := range params {
			same = same && p.Params[name] == value
		}
		if same {
			medians, higher = append(medians, p.Median()), p.Better == "higher"
		}
	}
	switch {
	case len(medians) == 0:
		t.Fatalf("%s/%s.json has no %s", folder, name, metric)
	case higher:
		return figureText(slices.Min(medians))
	}
	return figureText(slices.Max(medians))
}

// TestBaselinesAreOneGeneration: figures shown together come from one machine, and from commits
// that a reader can look at. A shallow clone, or a copy without history, has no commits: there the
// test compares only the machines.
func TestBaselinesAreOneGeneration(t *testing.T) {
	inHistory := History(root)
	if shallow, err := exec.Command("git", "-C", root, "rev-parse", "--is-shallow-repository").Output(); err != nil ||
		string(shallow) == "true\n" {
		inHistory = func(string) bool { return true }
	}
	for _, folder := range folders {
		if err := OneGeneration(baselines(t, folder), Experiments(), inHistory); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

// TestNoTargetDependsOnTheProcessor: a time or a packet rate depends on the processor, so it has no
// target.
func TestNoTargetDependsOnTheProcessor(t *testing.T) {
	for _, r := range slices.Concat(baselines(t, folders[0]), baselines(t, folders[1])) {
		for _, p := range r.Points {
			if p.Target != nil && slices.Contains([]string{"ns", "us", "ms", "M/s", "pps", "kpps", "Mpps"}, p.Unit) {
				t.Errorf("%s: %s is held to %g %s", r.Name, p.Key(), *p.Target, p.Unit)
			}
		}
	}
}

func TestWriteDocs(t *testing.T) {
	tree := t.TempDir()
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(tree, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	every := func(string) bool { return true }
	if err := os.Mkdir(filepath.Join(tree, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	empty := blockBegins + "\nold\n" + blockEnds + "\n"
	write(readmeFile, "# A\n"+empty+"## B\n")
	write(figuresFile, "# C\n"+empty)
	runs := fixture()
	runs[2].Name = docPlots[0].run // so that both plots are drawn
	runs[2].Failed, runs[2].Points = "", runs[1].Points
	for _, r := range runs {
		r.Machine = runs[1].Machine
	}
	list := append(slices.Clone(known), Experiment{Name: docPlots[0].run})
	for range 2 { // the second time the files exist
		if err := WriteDocs(tree, [][]*results.Run{runs}, list, every); err != nil {
			t.Fatal(err)
		}
	}
	d, err := compose(one(runs, list), list)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("# A\n"+d.readme+"## B\n", read(readmeFile)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("# C\n"+d.figures, read(figuresFile)); diff != "" {
		t.Error(diff)
	}
	services := filepath.Join(plotsFolder, docPlots[0].file)
	if read(services) != string(d.plots[docPlots[0].file]) {
		t.Error("the plot is another")
	}
	// A plot without measurements must be removed.
	without := slices.Delete(slices.Clone(runs), 2, 3)
	if err := WriteDocs(tree, [][]*results.Run{without}, list, every); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tree, services)); err == nil {
		t.Error("the plot of figures that are gone is still there")
	}
	before := read(readmeFile)
	for name, c := range map[string]struct {
		text string
		runs []*results.Run
		in   func(string) bool
	}{
		"no runs":             {before, nil, every},
		"no block":            {"no block\n", runs, every},
		"ends before begins":  {blockEnds + "\n" + blockBegins + "\n", runs, every},
		"a ratio is missing":  {before, runs[:1], every},
		"a commit of no tree": {before, runs, func(string) bool { return false }},
		"an experiment twice": {before, append(slices.Clone(runs), runs[0]), every},
		"an experiment unlike": {before, append(slices.Clone(runs), &results.Run{Name: "x", Machine: runs[0].Machine}),
			every},
	} {
		write(readmeFile, c.text)
		sets := [][]*results.Run{c.runs}
		if c.runs == nil {
			sets = nil
		}
		if err := WriteDocs(tree, sets, list, c.in); err == nil {
			t.Errorf("%s: written", name)
		}
		if read(readmeFile) != c.text {
			t.Errorf("%s: README was changed", name)
		}
	}
}

// TestHeadlineIsTheWorst: a missing ratio of README, or one without a bound, is an error, not an
// empty cell. Of several points the worst is shown.
func TestHeadlineIsTheWorst(t *testing.T) {
	runs := fixture()
	last := len(runs[0].Points) - 1
	with := func(p ...results.Point) []*results.Run {
		changed := *runs[0]
		changed.Points = append(slices.Clone(runs[0].Points[:last]), p...)
		return append([]*results.Run{&changed}, runs[1:]...)
	}
	free, better, worse := runs[0].Points[last], runs[0].Points[last], runs[0].Points[last]
	free.Target = nil
	better.Samples, worse.Samples = []float64{1}, []float64{3}
	for name, changed := range map[string][]*results.Run{"gone": with(), "free": with(free)} {
		if _, err := headlinesOf(one(changed, known)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, changed := range [][]*results.Run{with(better, worse), with(worse, better), with(free, worse)} {
		list, err := headlinesOf(one(changed, known))
		if err != nil || !strings.HasPrefix(list[len(list)-1].figures[0], "3,") {
			t.Errorf("%v, %v, want the ratio 3", list, err)
		}
	}
	list, err := headlinesOf(one(runs, known))
	if err != nil || len(list) != len(headlines) || !strings.HasSuffix(list[1].figures[0], ", **missed**") {
		t.Errorf("%v, %v", list, err)
	}
}
