package pipeline

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

// Systems and metrics of the points.
const (
	experiment = "pipeline"
	sluice     = "sluice"
	before     = paired.Before // an older build's worker
	inC        = "c-reference"
	inCSerial  = "c-one-by-one" // without batches and prefetches

	metricCost  = "ns_per_packet"
	metricRatio = "ratio"
	metricBytes = "bytes_per_flow"
)

// points collects samples: repeated samples of the same conditions belong to one point.
type points struct{ list []results.Point }

// add appends a sample to its point. The first sample's unit and target are kept.
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

// cost adds nanoseconds per packet. They have no target, because they depend on the processor.
func (p *points) cost(system string, params map[string]string, ns float64) {
	p.add(ns, results.Point{System: system, Params: params, Metric: metricCost, Unit: "ns", Better: "lower"})
}

// ratio adds the ratio of Sluice's figure to the system's in params "to"; better is "lower" or
// "higher".
func (p *points) ratio(params map[string]string, value float64, better string, target float64) {
	point := results.Point{System: sluice, Params: params, Metric: metricRatio, Unit: "ratio", Better: better}
	if target != 0 {
		point.Target = &target
	}
	p.add(value, point)
}

// row is the printed line of one set of conditions.
type row struct {
	conditions, sluice, inC, serial, ratio, missed string
}

// table prints medians: a line for each set of conditions.
func (p *points) table(out io.Writer) error {
	if len(p.list) == 0 {
		return nil
	}
	var rows []*row
	at := map[string]*row{}
	for i := range p.list {
		q := &p.list[i]
		key := conditions(q.Params)
		if at[key] == nil {
			at[key] = &row{conditions: key}
			rows = append(rows, at[key])
		}
		at[key].show(q)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "medians\tsluice\tC\tC, one by one\tratio\t\n")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.conditions, r.sluice, r.inC, r.serial, r.ratio,
			strings.TrimPrefix(r.missed, ", "))
	}
	return t.Flush()
}

// show sets the column of a point.
func (r *row) show(q *results.Point) {
	value := fmt.Sprintf("%.4g %s", q.Median(), q.Unit)
	switch {
	case q.System == inC:
		r.inC = value
	case q.System == inCSerial:
		r.serial = value
	case q.Metric == metricRatio:
		r.ratio = fmt.Sprintf("%.3f of %s", q.Median(), q.Params["to"])
	case r.sluice != "":
		r.sluice += ", " + value
	default:
		r.sluice = value
	}
	if !q.Met() {
		r.missed += fmt.Sprintf(", missed %.4g %s", *q.Target, q.Unit)
	}
}

// conditions prints params in a fixed order: the scenario, then the others by name, without the
// system that a ratio compares with.
func conditions(params map[string]string) string {
	words := []string{params["scenario"]}
	for _, k := range slices.Sorted(maps.Keys(params)) {
		if k != "scenario" && k != "to" {
			words = append(words, k+"="+params[k])
		}
	}
	return strings.Join(words, " ")
}

// with copies params and adds more.
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
