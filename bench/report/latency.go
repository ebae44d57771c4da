package report

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// oneWay is the prefix of the metrics that are percentiles of latency.
const oneWay = "one-way, "

// latencies are the percentiles of a run: a line for each system at each share of its own no-drop
// rate.
type latencies struct {
	percentiles []string
	lines       []*latencyLine
}

type latencyLine struct {
	system, load string
	noDrop       string // Mpps, the base of load
	us           map[string]string
}

// isLatency reports whether a point belongs in the table. A latency at a rate chosen by the user
// does not, because the rate is no share of the no-drop rate.
func isLatency(p *results.Point) bool {
	return strings.HasPrefix(p.Metric, oneWay) && p.Params["load"] != ""
}

func latenciesOf(run *results.Run) *latencies {
	l, noDrop := new(latencies), make(map[string]string)
	for i := range run.Points {
		p := &run.Points[i]
		if p.Metric == "no_drop_rate" {
			noDrop[p.System] = figureText(p.Median())
		}
		if !isLatency(p) || len(p.Samples) == 0 {
			continue
		}
		percentile := strings.TrimPrefix(p.Metric, oneWay)
		if !slices.Contains(l.percentiles, percentile) {
			l.percentiles = append(l.percentiles, percentile)
		}
		line := l.line(p.System, p.Params["load"])
		line.us[percentile], line.noDrop = figureText(p.Median()), noDrop[p.System]
	}
	return l
}

// line finds a line, or adds it.
func (l *latencies) line(system, load string) *latencyLine {
	for _, have := range l.lines {
		if have.system == system && have.load == load {
			return have
		}
	}
	made := &latencyLine{system: system, load: load, us: make(map[string]string)}
	l.lines = append(l.lines, made)
	return made
}

// write writes the table, which has no targets.
func (l *latencies) write(b *strings.Builder) {
	fmt.Fprintf(b, "| one-way latency, us | no-drop Mpps | load %% | %s |\n| --- | --- | --- |%s\n",
		strings.Join(l.percentiles, " | "), strings.Repeat(" --- |", len(l.percentiles)))
	for _, line := range l.lines {
		fmt.Fprintf(b, "| %s | %s | %s |", escape(line.system), line.noDrop, escape(line.load))
		for _, p := range l.percentiles {
			fmt.Fprintf(b, " %s |", line.us[p])
		}
		fmt.Fprintln(b)
	}
}
