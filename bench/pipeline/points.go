package pipeline

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"sluice.dev/sluice/bench/results"
)

// The systems and metrics of the points.
const (
	experiment = "pipeline"
	sluice     = "sluice"
	inC        = "c-reference"
	inCSerial  = "c-one-by-one" // the same without batches and prefetches

	metricCost  = "ns_per_packet"
	metricRatio = "ratio"
)

// points collects samples: what is sampled again becomes one point more.
type points struct{ list []results.Point }

// add appends a sample to the point that it is of. The first sample's unit and target hold.
func (p *points) add(sample float64, like results.Point) {
	like.Experiment = experiment
	for i := range p.list {
		q := &p.list[i]
		if q.System == like.System && q.Metric == like.Metric && maps.Equal(q.Params, like.Params) {
			q.Samples = append(q.Samples, sample)
			return
		}
	}
	like.Samples = []float64{sample}
	p.list = append(p.list, like)
}

// cost adds nanoseconds per packet.
func (p *points) cost(system string, params map[string]string, ns float64, target *float64) {
	p.add(ns, results.Point{System: system, Params: params, Metric: metricCost, Unit: "ns", Better: "lower", Target: target})
}

// ratio adds what Sluice's figure is of the one that params name; better is "lower" or "higher".
func (p *points) ratio(params map[string]string, value float64, better string, target float64) {
	p.add(value, results.Point{System: sluice, Params: params, Metric: metricRatio, Unit: "ratio", Better: better, Target: &target})
}

// table prints medians.
func (p *points) table(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "conditions\tsystem\tmetric\tmedian\tof\ttarget\t")
	for i := range p.list {
		q := &p.list[i]
		target, missed := "-", ""
		if q.Target != nil {
			target = fmt.Sprintf("%.4g", *q.Target)
			if !q.Met() {
				missed = "missed"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g %s\t%d\t%s\t%s\n", conditions(q.Params), q.System, q.Metric, q.Median(), q.Unit, len(q.Samples), target, missed)
	}
	return t.Flush()
}

// conditions prints params in one order: the scenario, then the rest by name.
func conditions(params map[string]string) string {
	words := []string{params["scenario"]}
	for _, k := range slices.Sorted(maps.Keys(params)) {
		if k != "scenario" {
			words = append(words, k+"="+params[k])
		}
	}
	return strings.Join(words, " ")
}

// with copies params with more of them.
func with(params map[string]string, more ...string) map[string]string {
	m := maps.Clone(params)
	if m == nil {
		m = map[string]string{}
	}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}
