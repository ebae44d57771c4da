package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/bench/results"
)

// The block between these two lines is written by `sluice-bench report --readme`.
const (
	blockBegins = "<!-- figures: begin; written by `make readme` from bench/baselines, not by hand -->"
	blockEnds   = "<!-- figures: end -->"
)

// ShortRun is the note of runs that are too short, or on a machine too busy, to claim anything.
const ShortRun = "short run"

// plotsFolder is where the README's plots lie, beside it.
const plotsFolder = "docs/plots"

// readmePlots are the two plots of the README: the first figure whose name ends so. One
// that nothing was measured for is left out, and said to be.
var readmePlots = []struct{ file, suffix, unit, alt string }{
	{"services.svg", "-by-services", "pps", "Throughput against the number of Services, one line a system"},
	{"flows.svg", "-by-flows", "ns", "Nanoseconds per packet against the number of flows, one line a system"},
}

// block is the README's part and its plots, by the names of their files.
func block(runs []*results.Run, known []Experiment) (text string, plots map[string][]byte, err error) {
	var b strings.Builder
	fmt.Fprintln(&b, blockBegins)
	if slices.ContainsFunc(runs, func(r *results.Run) bool { return strings.Contains(r.Machine.Notes, ShortRun) }) {
		fmt.Fprint(&b, "**What is noted as a short run shows that it was run, and claims no figure.**\n\n")
	}
	all, kept := tally(runs)
	fmt.Fprintf(&b, "%d of %d targets are met. Medians of interleaved repetitions; \"of target\" is figure over target.\n", kept, all)
	writeMachines(&b, runs)
	writeAbsent(&b, absent(runs, known))
	plots = make(map[string][]byte)
	list := figures(drawable(runs, known))
	for _, w := range readmePlots {
		f := firstFigure(list, w.suffix, w.unit)
		if f == nil {
			fmt.Fprintf(&b, "\nNothing to draw yet: %s.\n", w.alt)
			continue
		}
		if plots[w.file], err = f.svg(); err != nil {
			return "", nil, err
		}
		fmt.Fprintf(&b, "\n![%s](%s/%s)\n", w.alt, plotsFolder, w.file)
	}
	for i, run := range runs {
		writeRun(&b, i+1, run)
	}
	fmt.Fprintln(&b, blockEnds)
	return b.String(), plots, nil
}

func writeMachines(b *strings.Builder, runs []*results.Run) {
	list := machines(runs)
	for _, m := range list {
		m.Link, m.Notes = "", "" // of a run: its table has them
		fmt.Fprintf(b, "\n%s.", escape(m.Line()))
		if len(list) > 1 {
			fmt.Fprintf(b, " Tables %s.", strings.Trim(strings.ReplaceAll(fmt.Sprint(m.Runs), " ", ", "), "[]"))
		}
		fmt.Fprintln(b)
	}
}

// writeAbsent lists what failed, and names what was not run.
func writeAbsent(b *strings.Builder, list []line) {
	var names []string
	for _, l := range list {
		if l.Failed {
			fmt.Fprintf(b, "\n**%s** %s\n", escape(l.Name), escape(l.Why))
		} else {
			names = append(names, escape(l.Name))
		}
	}
	if names != nil {
		fmt.Fprintf(b, "\n**Not measured:** %s.\n", strings.Join(names, ", "))
	}
}

// writeRun writes the tables of a run's targets and of its latencies, under its command.
func writeRun(b *strings.Builder, number int, run *results.Run) {
	list, common := mergedRows(run)
	delays := latenciesOf(run)
	if len(list)+len(delays.lines) == 0 {
		return
	}
	// In a code span nothing but a backquote means anything.
	about := []string{run.Began.Format(time.DateOnly), took(run), "Sluice " + escape(run.Version)}
	for _, s := range [...]string{run.Machine.Link, common, run.Machine.Notes, stolen(run)} {
		if s != "" {
			about = append(about, escape(s))
		}
	}
	fmt.Fprintf(b, "\n**%d** `%s`  \n%s\n\n", number, strings.ReplaceAll(run.Command, "`", "'"), strings.Join(about, "; "))
	if len(list) > 0 {
		fmt.Fprintf(b, "| what | target | figure | of target | |\n| --- | --- | --- | --- | --- |\n")
	}
	for _, m := range list {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", escape(m.What), m.Target, escape(m.Figure), m.Ratio, m.Verdict)
	}
	if len(delays.lines) > 0 {
		if len(list) > 0 {
			fmt.Fprintln(b)
		}
		delays.write(b)
	}
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
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "'", "\n", " ").Replace(s)
}

// splice puts the block where the document has one.
func splice(document []byte, block string) ([]byte, error) {
	before, rest, begins := bytes.Cut(document, []byte(blockBegins+"\n"))
	_, after, ends := bytes.Cut(rest, []byte(blockEnds+"\n"))
	if !begins || !ends {
		return nil, fmt.Errorf("no lines %q and %q, in this order: write them where the figures belong", blockBegins, blockEnds)
	}
	return append(append(bytes.Clone(before), block...), after...), nil
}

// WriteReadme writes the figures of runs into the README, and its plots beside it.
func WriteReadme(path string, runs []*results.Run, known []Experiment) error {
	document, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("readme: %w", err)
	}
	text, plots, err := block(runs, known)
	if err != nil {
		return err
	}
	if document, err = splice(document, text); err != nil {
		return fmt.Errorf("readme: %s: %w", path, err)
	}
	folder := filepath.Join(filepath.Dir(path), plotsFolder)
	err = os.MkdirAll(folder, 0o755)
	for _, w := range readmePlots {
		file := filepath.Join(folder, w.file)
		if plots[w.file] != nil {
			err = errors.Join(err, os.WriteFile(file, plots[w.file], 0o644))
		} else if gone := os.Remove(file); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	if err == nil {
		err = os.WriteFile(path, document, 0o644)
	}
	if err != nil {
		return fmt.Errorf("readme: %w", err)
	}
	return nil
}
