package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"time"

	"sluice.dev/sluice/bench/progress"
	"sluice.dev/sluice/bench/results"
)

//go:embed report.html
var page string

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

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"took":   took,
	"stolen": stolen,
	"date":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
	"inc":    func(i int) int { return i + 1 },
}).Parse(page))

// document is what the page is made of.
type document struct {
	Runs     []*results.Run
	Machines []machineRuns
	Absent   []line
	All, Met int
	About    []string // what each run answers
	Held     []row    // those with a target
	Rows     []row
	Plots    []inlined
}

// machineRuns is a machine, and the numbers of the runs on it.
type machineRuns struct {
	results.Machine
	Runs []int
}

type inlined struct {
	figure
	// SVG is trusted: it is what svg drew, and the drawing library escapes all text.
	SVG template.HTML
}

// HTML is one page of all that runs say, which needs no network and no other file: what was
// measured and a plot first, then what is held to a bound, then the rest. Known experiments that no
// run is of are lines of it.
func HTML(runs []*results.Run, known []Experiment) ([]byte, error) {
	d := document{Runs: runs, Machines: machines(runs), Absent: absent(runs, known), Rows: rows(runs)}
	d.All, d.Met = tally(runs)
	for _, r := range runs {
		d.About = append(d.About, about(r, known))
	}
	for _, r := range d.Rows {
		if r.Verdict != "" {
			d.Held = append(d.Held, r)
		}
	}
	for _, f := range figures(runs) {
		svg, err := f.svg()
		if err != nil {
			return nil, err
		}
		start := bytes.Index(svg, []byte("<svg")) // without the XML declaration
		if start < 0 {
			return nil, fmt.Errorf("plot %s: the drawing library wrote no <svg>", f.Name)
		}
		d.Plots = append(d.Plots, inlined{f, template.HTML(svg[start:])})
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, d); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return out.Bytes(), nil
}

// machines are the runs' machines, equal ones once.
func machines(runs []*results.Run) (list []machineRuns) {
next:
	for i, r := range runs {
		for j := range list {
			if len(list[j].Differ(r.Machine)) == 0 {
				list[j].Runs = append(list[j].Runs, i+1)
				continue next
			}
		}
		list = append(list, machineRuns{r.Machine, []int{i + 1}})
	}
	return list
}

// WritePlots saves each figure as SVG and PNG.
func WritePlots(dir string, runs []*results.Run) (files int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("plots: %w", err)
	}
	for _, f := range figures(runs) {
		svg, err := f.svg()
		if err != nil {
			return files, err
		}
		png, err := f.png()
		if err != nil {
			return files, err
		}
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.WriteFile(path+".svg", svg, 0o644), os.WriteFile(path+".png", png,
			0o644)); err != nil {
			return files, fmt.Errorf("plots: %w", err)
		}
		files += 2
	}
	return files, nil
}
