package report

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// plainParams are conditions whose value needs no name; they come first, in this order.
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

// amount is a varied condition's value: 100000 is 100k.
func amount(s string) string {
	if x, ok := number(s); ok && x >= 1000 {
		return short(x)
	}
	return s
}

// Verdicts of points with a target. A point without samples is not one that is met.
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

// tally counts the targets.
func tally(runs []*results.Run) (all, kept int) {
	for _, run := range runs {
		for i := range run.Points {
			switch verdict(&run.Points[i]) {
			case met:
				all, kept = all+1, kept+1
			case missed:
				all++
			}
		}
	}
	return all, kept
}

// merged is a row of several points that differ in one condition only, as "25 / 30 / 40".
type merged struct {
	What, Target, Figure, Verdict string
	Points                        int
}

// mergedRows are the points of a run that have a target, or those that have none, sweeps in one row
// each. The conditions that all of them share are said once, in common. Latencies that have a table
// of their own are left out.
func mergedRows(run *results.Run, targets bool) (list []merged, common string) {
	var points []*results.Point
	for i := range run.Points {
		if p := &run.Points[i]; (p.Target != nil) == targets && !isLatency(p) {
			points = append(points, p)
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
	// A point without samples is a row too, so groups of figures would not do.
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
		list = append(list, mergeRow(g, param(g[0]), run.Name, shared))
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

// sharedParams are the conditions that are the same in all of several points.
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

// sweeps reports whether another point differs from p in the condition only.
func sweeps(points []*results.Point, p *results.Point, param string) bool {
	return slices.ContainsFunc(points, func(q *results.Point) bool {
		return q.Params[param] != "" && q.Params[param] != p.Params[param] && mergeKey(p, param) == mergeKey(q, param)
	})
}

// comparedTo are the conditions that name what a ratio is to, the first that there is.
var comparedTo = [...]string{"to", "against"}

// title is what a row is about: where, then what. The experiment is left out where it is the run's
// own.
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
	if first.System != "sluice" || first.Target == nil { // what is held is Sluice's
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

func mergeRow(points []*results.Point, param, run string, shared []string) merged {
	first := points[0]
	what := title(first, param, run, shared)
	var xs, targets, values, misses []string
	for _, p := range points {
		xs = append(xs, amount(p.Params[param]))
		if p.Target != nil {
			targets = append(targets, figureText(*p.Target))
		}
		value := figureText(p.Median())
		if len(p.Samples) == 0 {
			value = "none"
		}
		values = append(values, value)
		if verdict(p) == missed {
			misses = append(misses, amount(p.Params[param]))
		}
	}
	join := func(list []string) string {
		if same := slices.Compact(slices.Clone(list)); len(same) == 1 {
			return same[0]
		}
		return strings.Join(list, " / ")
	}
	m := merged{Figure: join(values), Verdict: met, Points: len(points)}
	if first.Target != nil {
		m.Target = bound(first) + join(targets)
	}
	if first.Unit != "ratio" {
		m.Figure += " " + first.Unit
	}
	if len(points) > 1 {
		what += fmt.Sprintf(" at %s %s", strings.Join(xs, " / "), param)
	}
	switch {
	case len(misses) == len(points):
		m.Verdict = "**missed**"
	case len(misses) > 0:
		m.Verdict = "**missed** at " + strings.Join(misses, ", ")
	}
	for _, p := range points {
		if p.Remark != "" {
			what += "; " + p.Remark
		}
	}
	m.What = what
	return m
}
