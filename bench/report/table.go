package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// plainParams are conditions whose value is clear without a name; they come first, in this order.
var plainParams = []string{"scenario", "family", "protocol"}

// conditions is a point's Params in one line.
func conditions(p *results.Point, without ...string) string {
	var parts []string
	for _, name := range plainParams {
		if v := p.Params[name]; v != "" && !slices.Contains(without, name) {
			parts = append(parts, words(v))
		}
	}
	if rest := p.Conditions(append(without, plainParams...)...); rest != "" {
		parts = append(parts, words(rest))
	}
	return strings.Join(parts, ", ")
}

// amount writes a varied condition's value: 100000 as 100k.
func amount(s string) string {
	if x, ok := number(s); ok && x >= 1000 {
		return short(x)
	}
	return s
}

// Verdicts of points with a target. A point without samples does not count as met.
const (
	met    = "met"
	missed = "missed"
)

func verdict(p *results.Point) string {
	switch {
	case p.Target == nil:
		return ""
	case len(p.Samples) > 0 && p.Met():
		return met
	}
	return missed
}

func bound(p *results.Point) string {
	if p.Better == "lower" {
		return "≤ "
	}
	return "≥ "
}

// tallies describes how many bounds each generation meets.
func tallies(gens []generation) string {
	var parts []string
	for _, g := range gens {
		all, kept := 0, 0
		for _, run := range g.runs {
			for i := range run.Points {
				switch verdict(&run.Points[i]) {
				case met:
					all, kept = all+1, kept+1
				case missed:
					all++
				}
			}
		}
		part := fmt.Sprintf("%d of %d are kept", kept, all)
		if len(gens) > 1 {
			part += " on " + escape(g.title)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// notMeasured is the cell of a figure that is not in the run.
const notMeasured = "–"

// merged is a row of several points that differ in only one condition, as "25 / 30 / 40".
type merged struct {
	What, Target string
	Figures      []string // one for each column
	Points       int
}

// mergedRows merges the points of an experiment's columns that have a target, or those without a
// target, with each sweep in one row. common describes the conditions that all of them share. It
// leaves out latencies, which have a table of their own.
func mergedRows(columns []column, targets bool, most int) (list []merged, common string) {
	var points []*results.Point
	of := make(map[*results.Point]int) // columns
	for n, c := range columns {
		for i := range c.run.Points {
			if p := &c.run.Points[i]; (p.Target != nil) == targets && !isLatency(p) {
				points, of[p] = append(points, p), n
			}
		}
	}
	param := func(p *results.Point) string {
		for _, v := range varied {
			if p.Params[v.param] != "" && sweeps(points, p, v.param) {
				return v.param
			}
		}
		return ""
	}
	// Points without samples need a row, too, so this cannot use the groups of figures.
	at := make(map[string]int)
	var all [][]*results.Point
	for _, p := range points {
		key := mergeKey(p, param(p))
		n, known := at[key]
		if !known {
			n, at[key] = len(all), len(all)
			all = append(all, nil)
		}
		all[n] = append(all[n], p)
	}
	shared := sharedParams(points)
	for _, g := range all {
		row := tableRow{points: g, param: param(g[0]), columns: len(columns), columnOf: of}
		list = append(list, row.merge(columns[0].run.Name, shared, most == math.MaxInt))
	}
	if len(shared) > 0 {
		same := results.Point{Params: make(map[string]string)}
		for _, name := range shared {
			same.Params[name] = points[0].Params[name]
		}
		common = conditions(&same)
	}
	return list, common
}

// sharedParams are the conditions with the same value in all points.
func sharedParams(points []*results.Point) (names []string) {
	if len(points) < 2 {
		return nil
	}
	for name, value := range points[0].Params {
		if !slices.Contains(comparedTo[:], name) &&
			!slices.ContainsFunc(points, func(p *results.Point) bool { return p.Params[name] != value }) {
			names = append(names, name)
		}
	}
	return names
}

func mergeKey(p *results.Point, without string) string {
	return strings.Join([]string{p.Experiment, p.System, p.Conditions(without), p.Metric, p.Unit, p.Better}, "|")
}

// sweeps reports whether another point differs from p only in the condition.
func sweeps(points []*results.Point, p *results.Point, param string) bool {
	return slices.ContainsFunc(points, func(q *results.Point) bool {
		return q.Params[param] != "" && q.Params[param] != p.Params[param] && mergeKey(p, param) == mergeKey(q, param)
	})
}

// comparedTo are the conditions that name the system a ratio compares with; the first present is
// used.
var comparedTo = [...]string{"to", "against"}

// title describes a row: the conditions, then the metric. It omits the experiment if it is the
// run's own.
func title(first *results.Point, param, run string, shared []string) string {
	what, without := words(first.Metric), append(slices.Clone(shared), param)
	if first.Unit == "ratio" {
		for _, name := range comparedTo {
			if to := first.Params[name]; to != "" {
				what, without = what+" to "+to, append(without, name)
				break
			}
		}
	}
	if first.System != "sluice" || first.Target == nil { // bounds are on Sluice's figures
		what = first.System + ", " + what
	}
	if c := conditions(first, without...); c != "" {
		what = c + ": " + what
	}
	if first.Experiment != run {
		what = words(first.Experiment) + ": " + what
	}
	return what
}

// tableRow has the points of a row; columnOf has the column of each.
type tableRow struct {
	points   []*results.Point
	param    string // the varied condition; empty if there is none
	columns  int
	columnOf map[*results.Point]int
}

// merge makes the row, with the remarks of its points if remarks is set.
func (r *tableRow) merge(run string, shared []string, remarks bool) merged {
	first := r.points[0]
	m := merged{What: title(first, r.param, run, shared), Points: len(r.points)}
	xs := r.values()
	cells := make([]map[string]string, r.columns) // by the varied condition
	for n := range cells {
		cells[n] = make(map[string]string)
	}
	targets := make(map[string]string)
	for _, p := range r.points {
		cells[r.columnOf[p]][p.Params[r.param]] = cell(p)
		if p.Target != nil {
			targets[p.Params[r.param]] = figureText(*p.Target)
		}
	}
	everywhere := xs
	if first.Target == nil || len(slices.Compact(slices.Sorted(maps.Values(targets)))) == 1 {
		everywhere = inAll(xs, cells)
	}
	if len(everywhere) > 1 || len(everywhere) == 1 && len(xs) > 1 {
		m.What += fmt.Sprintf(" at %s %s", joined(everywhere, amount), r.param)
	}
	if first.Target != nil {
		m.Target = bound(first) + joined(xs, func(x string) string { return targets[x] })
	}
	for _, c := range cells {
		figure := figuresOf(c, xs, everywhere)
		if first.Unit != "ratio" && len(c) > 0 {
			figure += " " + escape(first.Unit)
		}
		m.Figures = append(m.Figures, figure)
	}
	if !remarks {
		return m
	}
	var seen []string
	for _, p := range r.points {
		if p.Remark != "" && !slices.Contains(seen, p.Remark) {
			seen = append(seen, p.Remark)
			m.What += "; " + p.Remark
		}
	}
	return m
}

// inAll returns the values that every column with a figure has.
func inAll(xs []string, cells []map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(xs), func(x string) bool {
		return slices.ContainsFunc(cells, func(c map[string]string) bool { return len(c) > 0 && c[x] == "" })
	})
}

// figuresOf lists the figures of a column by value: first those of the values in the row's name,
// then the column's others, with their values.
func figuresOf(cells map[string]string, xs, inName []string) string {
	if len(cells) == 0 {
		return notMeasured
	}
	text := func(x string) string { return cmp.Or(cells[x], notMeasured) }
	figure := joined(inName, text)
	own := slices.DeleteFunc(slices.Clone(xs), func(x string) bool {
		return slices.Contains(inName, x) || cells[x] == ""
	})
	if len(own) > 0 {
		figure = strings.TrimPrefix(fmt.Sprintf("%s; at %s: %s", figure, joined(own, amount), joined(own, text)), "; ")
	}
	return figure
}

// values returns the values of the varied condition: numbers in ascending order.
func (r *tableRow) values() (xs []string) {
	for _, p := range r.points {
		if x := p.Params[r.param]; !slices.Contains(xs, x) {
			xs = append(xs, x)
		}
	}
	slices.SortStableFunc(xs, func(a, b string) int {
		x, numeric := number(a)
		y, both := number(b)
		if !numeric || !both {
			return 0
		}
		return cmp.Compare(x, y)
	})
	return xs
}

// cell is a point's figure, in bold if it misses its bound.
func cell(p *results.Point) string {
	text := figureText(p.Median())
	if len(p.Samples) == 0 {
		text = "none"
	}
	if verdict(p) == missed {
		return "**" + text + "**"
	}
	return text
}

// joined lists the texts of values, or one text if all are equal.
func joined(xs []string, text func(string) string) string {
	var list []string
	for _, x := range xs {
		list = append(list, text(x))
	}
	if same := slices.Compact(slices.Clone(list)); len(same) == 1 {
		return same[0]
	}
	return strings.Join(list, " / ")
}
