package report

import (
	"bytes"
	"cmp"
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

// The blocks between these lines are written by `sluice-bench report --docs`.
const (
	blockBegins = "<!-- figures: begin; written by `make -C bench figures` from bench/baselines, not by hand -->"
	blockEnds   = "<!-- figures: end -->"
)

// ShortRun is the note of runs that are too short, or on too busy a machine, for valid figures.
const ShortRun = "short run"

// Files that WriteDocs writes, below the root of the tree.
const (
	readmeFile  = "README.md"
	figuresFile = "docs/benchmarks.md"
	plotsFolder = "docs/plots"
)

// docPlot is a plot in the documents: the first figure of one run whose name ends with suffix,
// preferably one whose y axis has the unit. A plot shows one run, so all its lines were measured
// side by side.
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

// compose makes the documents of the generations. Plots show the first generation.
func compose(gens []generation, known []Experiment) (*documents, error) {
	d := &documents{plots: make(map[string][]byte)}
	drawn := make(map[string]figure)
	for _, w := range docPlots {
		f := firstFigure(figures(named(gens[0].runs, w.run)), w.suffix, w.unit)
		if f == nil {
			continue
		}
		svg, err := f.svg()
		if err != nil {
			return nil, err
		}
		d.plots[w.file], drawn[w.file] = svg, *f
	}
	lines, err := headlinesOf(gens)
	if err != nil {
		return nil, err
	}
	d.readme = readmeBlock(gens, lines, d.plots)
	d.figures = figuresBlock(gens, known, drawn)
	return d, nil
}

// inOrder sorts runs in the order of the experiments; unlisted runs come last.
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

// readmeBlock is the plot and the ratios in README.
func readmeBlock(gens []generation, lines []headlineRow, plots map[string][]byte) string {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	writeHeadlines(&b, gens, lines, figuresFile)
	if w := docPlots[0]; plots[w.file] != nil {
		fmt.Fprintf(&b, "\n![%s](%s/%s)\n", w.alt, plotsFolder, w.file)
	}
	fmt.Fprintf(&b, "\n[docs/benchmarks.md](%s) has every bound: %s.\n", figuresFile, tallies(gens))
	fmt.Fprintln(&b, blockEnds)
	return b.String()
}

// figuresBlock lists the machines and experiments, then the plots and each run.
func figuresBlock(gens []generation, known []Experiment, drawn map[string]figure) string {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	writeMeasured(&b, gens, known)
	for _, w := range docPlots {
		f, ok := drawn[w.file]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "\n![%s](plots/%s)\n\n", w.alt, w.file)
		fmt.Fprintf(&b, "Experiment [%s](#%s).\n\n", w.run, w.run)
		writeGrowth(&b, &f)
	}
	writeEvery(&b, gens, unboundedRows)
	writeAbsent(&b, gens, known)
	fmt.Fprintln(&b, blockEnds)
	return b.String()
}

// Write writes all runs as Markdown: machines, a table of the runs, every figure of each, and the
// known experiments that failed or were not run.
func Write(out io.Writer, runs []*results.Run, known []Experiment) error {
	var b strings.Builder
	gens := []generation{{title: "figure", runs: inOrder(runs, known)}}
	writeMeasured(&b, gens, known)
	writeEvery(&b, gens, math.MaxInt)
	writeAbsent(&b, gens, known)
	_, err := io.WriteString(out, b.String())
	return err
}

// writeMeasured writes the machines and a table of the experiments, with the commit, date and
// duration of each generation's run.
func writeMeasured(b *strings.Builder, gens []generation, known []Experiment) {
	fmt.Fprint(b, "## Machines and runs\n\n")
	for _, g := range gens {
		if slices.ContainsFunc(g.runs, isShort) {
			fmt.Fprint(b, "**A run noted as short shows that the experiment works, and claims no figure.**\n\n")
			break
		}
	}
	titles := ""
	for _, g := range gens {
		title := ""
		if len(gens) > 1 {
			title = escape(g.title) + ": "
		}
		titles += " " + strings.TrimSuffix(cmp.Or(title, "measured: "), ": ") + " |"
		for _, m := range machines(g.runs) {
			m.Link, m.Notes = "", "" // properties of a run: its section shows them
			fmt.Fprintf(b, "%s%s.\n\n", title, escape(m.Line()))
		}
	}
	fmt.Fprintf(b, "| experiment | question |%s\n| --- | --- |%s\n", titles, strings.Repeat(" --- |", len(gens)))
	for _, columns := range experimentsOf(gens) {
		first := columns[0].run
		fmt.Fprintf(b, "| [%s](#%s) | %s |", escape(first.Name), escape(first.Name), escape(about(first, known)))
		for _, g := range gens {
			cell := "not run"
			for _, c := range columns {
				if c.title == g.title {
					cell = escape(c.run.Version) + c.run.Began.Format(", "+time.DateOnly+", ") + took(c.run)
				}
			}
			fmt.Fprintf(b, " %s |", cell)
		}
		fmt.Fprintln(b)
	}
}

// writeEvery writes the figures of each experiment.
func writeEvery(b *strings.Builder, gens []generation, most int) {
	fmt.Fprintf(b, "\n## Every experiment\n\nBounds: %s.\n", tallies(gens))
	fmt.Fprint(b, "A figure is the median of interleaved repetitions; one in **bold** misses its bound.\n")
	for _, columns := range experimentsOf(gens) {
		writeExperiment(b, columns, most)
	}
}

func isShort(r *results.Run) bool { return strings.Contains(r.Machine.Notes, ShortRun) }

// took is the duration of a run.
func took(r *results.Run) string {
	return progress.Short(time.Duration(r.Seconds * float64(time.Second)))
}

// stolen describes the share of the processors' time that the hypervisor gave to others, if it was
// measured: figures from a machine without processors half of the time mean little.
func stolen(r *results.Run) string {
	if r.Stolen == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %% of processor time stolen by the hypervisor", 100*r.Stolen)
}

// machines are the runs' machines, without duplicates.
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

// about is the question of an experiment; empty if it is not listed.
func about(r *results.Run, known []Experiment) string {
	if n := placeOf(r, known); n >= 0 {
		return known[n].About
	}
	return ""
}

// writeAbsent lists the experiments that failed, and experiments without a run in the first
// generation.
func writeAbsent(b *strings.Builder, gens []generation, known []Experiment) {
	var list []line
	for i, g := range gens {
		if i > 0 {
			known = nil // later generations need not have every experiment
		}
		list = append(list, absent(g.runs, known)...)
	}
	if list == nil {
		return
	}
	fmt.Fprint(b, "\n## Not measured\n\n")
	for _, l := range list {
		fmt.Fprintf(b, "- %s: %s\n", escape(l.Name), escape(l.Why))
	}
}

// unboundedRows is the number of rows without a bound per experiment up to which a document lists
// them; otherwise it gives their number. Write lists all.
const unboundedRows = 12

// writeExperiment writes the figures of an experiment below its commands, a column for each
// machine: rows with a bound, latencies, then the other rows if there are at most most of them.
func writeExperiment(b *strings.Builder, columns []column, most int) {
	held, common := mergedRows(columns, true, most)
	others, commonToOthers := mergedRows(columns, false, most)
	fmt.Fprintf(b, "\n### %s\n\n", escape(columns[0].run.Name))
	heads, lines := "", ""
	for i, c := range columns {
		if i > 0 {
			fmt.Fprintln(b)
		}
		writeConditions(b, columns[:i], c, len(columns) > 1, common)
		heads, lines = heads+" "+escape(c.title)+" |", lines+" --- |"
	}
	if len(held) > 0 {
		fmt.Fprintf(b, "\n| what | bound |%s\n| --- | --- |%s\n", heads, lines)
	}
	for _, m := range held {
		fmt.Fprintf(b, "| %s | %s | %s |\n", escape(m.What), m.Target, strings.Join(m.Figures, " | "))
	}
	for _, c := range columns {
		if delays := latenciesOf(c.run); len(delays.lines) > 0 {
			fmt.Fprintln(b)
			delays.write(b)
		}
	}
	switch {
	case len(others) > most:
		fmt.Fprintf(b, "\n%d figures without a bound: `sluice-bench report` prints them.\n", count(others))
	case len(others) > 0:
		fmt.Fprint(b, "\nWithout a bound")
		if commonToOthers != "" && commonToOthers != common {
			fmt.Fprintf(b, " (%s)", escape(commonToOthers))
		}
		fmt.Fprintf(b, ":\n\n| what |%s\n| --- |%s\n", heads, lines)
		for _, m := range others {
			fmt.Fprintf(b, "| %s | %s |\n", escape(m.What), strings.Join(m.Figures, " | "))
		}
	}
}

// writeConditions writes the command of a column, unless an earlier column has the same, and the
// run's notes on the link and the load.
func writeConditions(b *strings.Builder, before []column, c column, titled bool, common string) {
	if !slices.ContainsFunc(before, func(o column) bool { return o.run.Command == c.run.Command }) {
		// In a code span only a backquote has a meaning.
		fmt.Fprintf(b, "`%s`\n\n", strings.ReplaceAll(c.run.Command, "`", "'"))
	}
	var details []string
	if titled {
		details = append(details, escape(c.title))
	}
	if len(before) == 0 {
		details = append(details, escape(c.run.Machine.Link), escape(common))
	}
	details = append(details, escape(c.run.Machine.Notes), stolen(c.run))
	details = slices.DeleteFunc(details, func(s string) bool { return s == "" })
	if len(details) > 0 {
		fmt.Fprintf(b, "%s.\n", sentence(strings.Join(details, "; ")))
	}
	if c.run.Failed != "" {
		fmt.Fprintf(b, "\n**Failed:** %s\n", escape(c.run.Failed))
	}
}

// count returns the number of figures in rows.
func count(rows []merged) (n int) {
	for _, m := range rows {
		n += m.Points
	}
	return n
}

// firstFigure returns the first figure whose name ends with suffix, preferably one with the unit.
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

// escape escapes Markdown and HTML in a text.
func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "'", "\n",
		" ").Replace(s)
}

// splice replaces the generated block of a document.
func splice(document []byte, block string) ([]byte, error) {
	before, rest, begins := bytes.Cut(document, []byte(blockBegins+"\n"))
	_, after, ends := bytes.Cut(rest, []byte(blockEnds+"\n"))
	if !begins || !ends {
		return nil, fmt.Errorf("no lines %q and %q, in this order: write them where the figures belong", blockBegins,
			blockEnds)
	}
	return append(append(bytes.Clone(before), block...), after...), nil
}

// spliced returns a file's text with its generated block replaced.
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

// WriteDocs writes the figures of each machine's runs into README.md, docs/benchmarks.md and
// docs/plots of the tree at root. The first machine must have every ratio of README. It returns an
// error if the runs of a machine are not one generation; inHistory reports whether the tree has a
// commit.
func WriteDocs(root string, sets [][]*results.Run, known []Experiment, inHistory func(string) bool) error {
	gens, err := generationsOf(sets, known, inHistory)
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	d, err := compose(gens, known)
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	written := make(map[string][]byte) // all files are composed before the first is written
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
