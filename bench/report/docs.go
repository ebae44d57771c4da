package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/progress"
)

// The blocks between two such lines are written by `sluice-bench report --docs` and `--page`.
const (
	blockBegins = "<!-- figures: begin; written by `make figures` from bench/baselines, not by hand -->"
	blockEnds   = "<!-- figures: end -->"
)

// ShortRun is the note of runs that are too short, or on a machine too busy, to claim anything.
const ShortRun = "short run"

// Files that WriteDocs writes, below the root of the tree.
const (
	readmeFile  = "README.md"
	figuresFile = "docs/benchmarks.md"
	plotsFolder = "docs/plots"
)

// docPlot is a plot of the documents: the first figure of one run whose name ends with suffix, if
// possible one whose y axis ends with the unit. A plot is of one run, so all its lines were
// measured side by side.
type docPlot struct{ file, run, suffix, unit, alt string }

var docPlots = [...]docPlot{
	{
		"services.svg", "services", "-by-services", "pps",
		"Packets per second against the number of Services, one line per system",
	},
	{
		"flows.svg", "pipeline", "-by-flows", "ns",
		"Nanoseconds per packet against the number of flows, the worker and the C program",
	},
}

// documents are the generated blocks of README and docs/benchmarks.md, and the plots by file name.
type documents struct {
	readme, figures string
	plots           map[string][]byte
}

// compose makes the documents of one generation of runs.
func compose(runs []*results.Run, known []Experiment) (*documents, error) {
	runs = inOrder(runs, known)
	d := &documents{plots: make(map[string][]byte)}
	drawn := make(map[string]figure)
	for _, w := range docPlots {
		f := firstFigure(figures(named(runs, w.run)), w.suffix, w.unit)
		if f == nil {
			continue
		}
		svg, err := f.svg()
		if err != nil {
			return nil, err
		}
		d.plots[w.file], drawn[w.file] = svg, *f
	}
	lines, err := headlinesOf(runs)
	if err != nil {
		return nil, err
	}
	d.readme = readmeBlock(runs, lines, d.plots)
	d.figures = figuresBlock(runs, known, lines, drawn)
	return d, nil
}

// inOrder sorts runs as the experiments are listed; what is not listed comes last.
func inOrder(runs []*results.Run, known []Experiment) []*results.Run {
	place := func(r *results.Run) int {
		if n := placeOf(r, known); n >= 0 {
			return n
		}
		return len(known)
	}
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b *results.Run) int { return place(a) - place(b) })
	return runs
}

func named(runs []*results.Run, name string) (list []*results.Run) {
	for _, r := range runs {
		if r.Name == name {
			list = append(list, r)
		}
	}
	return list
}

// readmeBlock is a plot and the ratios.
func readmeBlock(runs []*results.Run, lines []headlineRow, plots map[string][]byte) string {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	writeHeadlines(&b, lines, figuresFile)
	if w := docPlots[0]; plots[w.file] != nil {
		fmt.Fprintf(&b, "\n![%s](%s/%s)\n", w.alt, plotsFolder, w.file)
	}
	all, kept := tally(runs)
	fmt.Fprintf(&b, "\n%d of %d bounds are met; [docs/benchmarks.md](%s) marks the others.\n", kept, all, figuresFile)
	fmt.Fprintln(&b, blockEnds)
	return b.String()
}

// figuresBlock is what was measured, the plots, the ratios, then each run.
func figuresBlock(runs []*results.Run, known []Experiment, lines []headlineRow, drawn map[string]figure) string {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	writeMeasured(&b, runs, known)
	for _, w := range docPlots {
		f, ok := drawn[w.file]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "\n![%s](plots/%s)\n\n", w.alt, w.file)
		fmt.Fprintf(&b, "%s, of experiment [%s](#%s).\n\n", w.alt, w.run, w.run)
		writeGrowth(&b, &f)
	}
	fmt.Fprint(&b, "\n## The ratios of README\n\n")
	writeHeadlines(&b, lines, "")
	writeEvery(&b, runs, known, unboundedRows)
	writeAbsent(&b, absent(runs, known))
	fmt.Fprintln(&b, blockEnds)
	return b.String()
}

// pageBlock is what was measured, then each run: of runs that are not those of README.
func pageBlock(runs []*results.Run, known []Experiment) string {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	writeMeasured(&b, runs, known)
	writeEvery(&b, runs, known, unboundedRows)
	writeAbsent(&b, absent(runs, nil))
	fmt.Fprintln(&b, blockEnds)
	return b.String()
}

// Write writes all that runs say as Markdown: machines, a table of the runs, every figure of each,
// and the known experiments that failed or that no run is of.
func Write(out io.Writer, runs []*results.Run, known []Experiment) error {
	var b strings.Builder
	runs = inOrder(runs, known)
	writeMeasured(&b, runs, known)
	writeEvery(&b, runs, known, math.MaxInt)
	writeAbsent(&b, absent(runs, known))
	_, err := io.WriteString(out, b.String())
	return err
}

// writeMeasured writes the machine and a table of the runs.
func writeMeasured(b *strings.Builder, runs []*results.Run, known []Experiment) {
	fmt.Fprint(b, "## What was measured\n\n")
	if slices.ContainsFunc(runs, func(r *results.Run) bool { return strings.Contains(r.Machine.Notes, ShortRun) }) {
		fmt.Fprint(b, "**What is noted as a short run shows that it was run, and claims no figure.**\n\n")
	}
	for _, m := range machines(runs) {
		m.Link, m.Notes = "", "" // of a run: its section has them
		fmt.Fprintf(b, "%s.\n\n", escape(m.Line()))
	}
	fmt.Fprint(b, "| experiment | what it answers | commit | date | took |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range runs {
		name := escape(r.Name)
		fmt.Fprintf(b, "| [%s](#%s) | %s | %s | %s | %s |\n",
			name, name, escape(about(r, known)), escape(r.Version), r.Began.Format(time.DateOnly), took(r))
	}
}

// writeEvery writes the figures of each run.
func writeEvery(b *strings.Builder, runs []*results.Run, known []Experiment, most int) {
	all, kept := tally(runs)
	fmt.Fprintf(b, "\n## Every experiment\n\n%d of %d bounds are held. ", kept, all)
	fmt.Fprint(b, "A figure is the median of interleaved repetitions.\n")
	for _, run := range runs {
		writeRun(b, run, known, most)
	}
}

// took is how long a run was.
func took(r *results.Run) string {
	return progress.Short(time.Duration(r.Seconds * float64(time.Second)))
}

// stolen describes how much of the processors' time the hypervisor spent elsewhere, where it was
// measured: figures of a machine that was not there half of the time say little.
func stolen(r *results.Run) string {
	if r.Stolen == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %% of processor time stolen by the hypervisor", 100*r.Stolen)
}

// machines are the runs' machines, equal ones once.
func machines(runs []*results.Run) (list []results.Machine) {
	for _, r := range runs {
		if !slices.ContainsFunc(list, func(m results.Machine) bool { return len(m.Differ(r.Machine)) == 0 }) {
			list = append(list, r.Machine)
		}
	}
	return list
}

// placeOf returns the place of a run's experiment in the list, or -1.
func placeOf(r *results.Run, known []Experiment) int {
	return slices.IndexFunc(known, func(e Experiment) bool { return e.Name == r.Name })
}

// about is what an experiment answers; empty if it is not listed.
func about(r *results.Run, known []Experiment) string {
	if n := placeOf(r, known); n >= 0 {
		return known[n].About
	}
	return ""
}

// writeAbsent lists what failed or was not run.
func writeAbsent(b *strings.Builder, list []line) {
	if list == nil {
		return
	}
	fmt.Fprint(b, "\n## Not measured\n\n")
	for _, l := range list {
		fmt.Fprintf(b, "- %s: %s\n", escape(l.Name), escape(l.Why))
	}
}

// unboundedRows is how many figures without a bound a document of the tree lists of a run: of a run
// with more it says how many there are. Write lists all.
const unboundedRows = 30

// writeRun writes the figures of a run under its command: those that are held to a bound,
// latencies, then the others if they are not more than most.
func writeRun(b *strings.Builder, run *results.Run, known []Experiment, most int) {
	held, common := mergedRows(run, true)
	others, commonToOthers := mergedRows(run, false)
	delays := latenciesOf(run)
	fmt.Fprintf(b, "\n### %s\n\n", escape(run.Name))
	if a := about(run, known); a != "" {
		fmt.Fprintf(b, "%s.\n\n", escape(sentence(a)))
	}
	// In a code span nothing but a backquote means anything.
	fmt.Fprintf(b, "`%s`\n\n", strings.ReplaceAll(run.Command, "`", "'"))
	details := []string{"commit " + escape(run.Version), run.Began.Format(time.DateOnly)}
	for _, s := range [...]string{run.Machine.Link, common, run.Machine.Notes, stolen(run)} {
		if s != "" {
			details = append(details, escape(s))
		}
	}
	fmt.Fprintf(b, "%s.\n", sentence(strings.Join(details, "; ")))
	if run.Failed != "" {
		fmt.Fprintf(b, "\n**Failed:** %s\n", escape(run.Failed))
	}
	if len(held) > 0 {
		fmt.Fprint(b, "\n| what | bound | figure | |\n| --- | --- | --- | --- |\n")
	}
	for _, m := range held {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", escape(m.What), m.Target, escape(m.Figure), m.Verdict)
	}
	if len(delays.lines) > 0 {
		fmt.Fprintln(b)
		delays.write(b)
	}
	switch {
	case len(others) > most:
		fmt.Fprintf(b, "\n%d more figures have no bound; `sluice-bench report` prints them.\n",
			count(run, others))
	case len(others) > 0:
		fmt.Fprint(b, "\nWithout a bound")
		if commonToOthers != "" && commonToOthers != common {
			fmt.Fprintf(b, " (%s)", escape(commonToOthers))
		}
		fmt.Fprint(b, ":\n\n| what | figure |\n| --- | --- |\n")
		for _, m := range others {
			fmt.Fprintf(b, "| %s | %s |\n", escape(m.What), escape(m.Figure))
		}
	}
}

// count is how many points several rows stand for.
func count(run *results.Run, rows []merged) (n int) {
	for _, m := range rows {
		n += m.Points
	}
	return n
}

// firstFigure prefers, of figures whose name ends so, one of the unit.
func firstFigure(list []figure, suffix, unit string) (found *figure) {
	for i := range list {
		switch {
		case !strings.HasSuffix(list[i].Name, suffix):
		case strings.HasSuffix(list[i].Y, unit):
			return &list[i]
		case found == nil:
			found = &list[i]
		}
	}
	return found
}

// escape keeps a text from being Markdown or HTML.
func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "'", "\n",
		" ").Replace(s)
}

// splice puts the block where the document has one.
func splice(document []byte, block string) ([]byte, error) {
	before, rest, begins := bytes.Cut(document, []byte(blockBegins+"\n"))
	_, after, ends := bytes.Cut(rest, []byte(blockEnds+"\n"))
	if !begins || !ends {
		return nil, fmt.Errorf("no lines %q and %q, in this order: write them where the figures belong", blockBegins,
			blockEnds)
	}
	return append(append(bytes.Clone(before), block...), after...), nil
}

// spliced returns a file with the block where it has one.
func spliced(file, block string) ([]byte, error) {
	document, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text, err := splice(document, block)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, nil
}

// WriteDocs writes the figures of one generation of runs into README.md, docs/benchmarks.md and
// docs/plots of the tree at root. It refuses runs that are not of one generation; inHistory reports
// whether the tree has a commit.
func WriteDocs(root string, runs []*results.Run, known []Experiment, inHistory func(string) bool) error {
	if err := OneGeneration(runs, known, inHistory); err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	d, err := compose(runs, known)
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	written := make(map[string][]byte) // nothing is written before all of it is known
	for file, block := range map[string]string{readmeFile: d.readme, figuresFile: d.figures} {
		if written[file], err = spliced(filepath.Join(root, file), block); err != nil {
			return fmt.Errorf("figures: %w", err)
		}
	}
	err = os.MkdirAll(filepath.Join(root, plotsFolder), 0o755)
	for _, w := range docPlots {
		file := filepath.Join(plotsFolder, w.file)
		if d.plots[w.file] != nil {
			written[file] = d.plots[w.file]
		} else if gone := os.Remove(filepath.Join(root, file)); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	for file, text := range written {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, file), text, 0o644))
	}
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	return nil
}

// WritePage writes the figures of one generation of runs into a Markdown page that has a block for
// them: of another machine than that of WriteDocs. What it refuses is the same.
func WritePage(file string, runs []*results.Run, known []Experiment, inHistory func(string) bool) error {
	if err := OneGeneration(runs, known, inHistory); err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	text, err := spliced(file, pageBlock(inOrder(runs, known), known))
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	return nil
}
