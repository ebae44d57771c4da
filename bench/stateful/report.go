package stateful

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"sluice.dev/sluice/bench/results"
)

// Table prints the results of the connections, per template and in total, and a verdict.
func (r *Result) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w,
		"template\topened\tcompleted\tper s\tfailed\tresets\tretransmitted\tconnect p50\tp99\tfirst byte "+
			"p50\tp99\tMB in\tviolations\t")
	row := func(name string, c, s *Counts, connect, first *hdr.Histogram) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.0f\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%.1f\t%d\t\n", name, c.Opened, c.Completed,
			float64(c.Completed)/r.Seconds,
			c.Failures(), c.ResetsIn+s.ResetsIn, c.Retransmits+s.Retransmits, quantile(connect, 50),
			quantile(connect, 99),
			quantile(first, 50), quantile(first, 99), float64(c.BytesIn)/1e6, c.Violations)
	}
	connect, first := merged(r.Client.Connect), merged(r.Client.FirstByte)
	for i := range r.Profile.Templates {
		row(r.Profile.Templates[i].Name, &r.Client.Templates[i], &r.Server.Templates[i], r.Client.Connect[i],
			r.Client.FirstByte[i])
	}
	c, s := r.Client.Total(), r.Server.Total()
	row("all", &c, &s, connect, first)
	if err := w.Flush(); err != nil {
		return err
	}
	for f, n := range c.Failed {
		if n > 0 {
			fmt.Fprintf(out, "failed, %s: %d\n", Failure(f), n)
		}
	}
	for _, line := range []struct {
		what string
		n    uint64
	}{
		{"moved to another server after theirs was removed (UDP)", c.Moved},
		{"answers by a server that saw another client address than before", c.Retupled},
		{"still open at the end", uint64(r.Open)},
		{"attempts without a free address and port", r.Client.Packets.NoTuple},
		{"server had no room", r.Server.Packets.Full},
		{"bad checksums", r.Client.Packets.BadChecksum + r.Server.Packets.BadChecksum},
	} {
		if line.n > 0 {
			fmt.Fprintf(out, "%s: %d\n", line.what, line.n)
		}
	}
	if r.Edits > 0 {
		fmt.Fprintf(out, "endpoints were removed and added: %d times\n", r.Edits)
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Dropped)) {
		fmt.Fprintf(out, "the gateway dropped, %s: %d\n", reason, r.Dropped[reason])
	}
	for i := range r.Client.Violations {
		fmt.Fprintf(out, "violation: %s\n", &r.Client.Violations[i])
	}
	verdict := "every connection met one server, and every byte that came was the right one"
	if err := r.Broken(); err != nil {
		verdict = "FAILED: " + err.Error()
	}
	_, err := fmt.Fprintf(out, "%s: %s\n", r.Profile.Name, verdict)
	return err
}

func quantile(h *hdr.Histogram, q float64) string {
	if h.TotalCount() == 0 {
		return "-"
	}
	return (time.Duration(h.ValueAtQuantile(q)) * time.Microsecond).String()
}

func merged(list []*hdr.Histogram) *hdr.Histogram {
	all := hdr.New(1, longestUS, significantDigits)
	for _, h := range list {
		all.Merge(h)
	}
	return all
}

// Points are the results of repetitions under the same conditions; system names the system between
// the engines.
func Points(system string, params map[string]string, runs []*Result) []results.Point {
	if len(runs) == 0 {
		return nil
	}
	p := runs[0].Profile
	points := pointsOf(system, params, "all", runs, func(r *Result) templateCounts {
		return templateCounts{r.Client.Total(), r.Server.Total(), merged(r.Client.Connect), merged(r.Client.FirstByte),
			merged(r.Client.Whole)}
	})
	for i := range p.Templates {
		points = append(points, pointsOf(system, params, p.Templates[i].Name, runs, func(r *Result) templateCounts {
			return templateCounts{r.Client.Templates[i], r.Server.Templates[i], r.Client.Connect[i],
				r.Client.FirstByte[i], r.Client.Whole[i]}
		})...)
	}
	return points
}

// templateCounts is both engines' counters of one template, or of all.
type templateCounts struct {
	client, server            Counts
	connect, firstByte, whole *hdr.Histogram
}

func pointsOf(
	system string, params map[string]string, template string, runs []*Result, of func(*Result) templateCounts,
) []results.Point {
	all := map[string]string{"profile": runs[0].Profile.Name, "template": template}
	maps.Copy(all, params)
	var list []templateCounts
	for _, r := range runs {
		list = append(list, of(r))
	}
	point := func(metric, unit, better string, f func(i int) float64) results.Point {
		p := results.Point{Experiment: "stateful", System: system, Params: all, Metric: metric, Unit: unit,
			Better: better}
		for i := range list {
			p.Samples = append(p.Samples, f(i))
		}
		return p
	}
	var points []results.Point
	distribution := func(metric string, which func(*templateCounts) *hdr.Histogram) {
		for _, q := range percentiles {
			points = append(points, point(metric+", p"+q, "us", "lower", func(i int) float64 {
				percent, _ := strconv.ParseFloat(q, 64) // it is a constant
				return float64(which(&list[i]).ValueAtQuantile(percent))
			}))
		}
		p := &points[len(points)-1]
		for _, b := range which(&list[len(list)-1]).CumulativeDistributionWithTicks(2) {
			p.Curve = append(p.Curve, [2]float64{b.Quantile, float64(b.ValueAt)})
		}
	}
	violations := point("violations", "connections", "lower",
		func(i int) float64 { return float64(list[i].client.Violations) })
	violations.Target = new(float64)
	points = []results.Point{
		point("completed_per_second", "1/s", "higher",
			func(i int) float64 { return float64(list[i].client.Completed) / runs[i].Seconds }),
		point("failed", "connections", "lower", func(i int) float64 { return float64(list[i].client.Failures()) }),
		point("retransmits", "packets", "lower",
			func(i int) float64 { return float64(list[i].client.Retransmits + list[i].server.Retransmits) }),
		point("moved", "exchanges", "lower", func(i int) float64 { return float64(list[i].client.Moved) }),
		violations,
	}
	if list[0].connect.TotalCount() > 0 {
		distribution("connect", func(t *templateCounts) *hdr.Histogram { return t.connect })
	}
	distribution("first byte", func(t *templateCounts) *hdr.Histogram { return t.firstByte })
	distribution("whole", func(t *templateCounts) *hdr.Histogram { return t.whole })
	return points
}

// percentiles of the times that are saved.
var percentiles = []string{"50", "99", "99.9"}

// summary prints the medians of several runs, a line for each system at each rate.
func summary(out io.Writer, points []results.Point) error {
	table := [][]string{{"connections/s", "", "completed/s", "failed", "sent again", "connect, us: p50, p99, p99.9",
		"first byte", "last byte, from the SYN on"}}
	row := map[string]map[string]string{} // cells by metric
	var order []string
	for i := range points {
		p := &points[i]
		if p.Params["template"] != "all" || len(p.Samples) == 0 {
			continue
		}
		key := p.Params["connections/s"] + " " + p.System
		if row[key] == nil {
			order, row[key] = append(order, key), map[string]string{}
		}
		row[key][p.Metric] = fmt.Sprintf("%.0f", p.Median())
	}
	for _, key := range order {
		cells := row[key]
		rate, system, _ := strings.Cut(key, " ")
		line := []string{rate, system, cells["completed_per_second"], cells["failed"], cells["retransmits"]}
		for _, metric := range []string{"connect", "first byte", "whole"} {
			var three []string
			for _, q := range percentiles {
				three = append(three, cells[metric+", p"+q])
			}
			line = append(line, strings.Join(three, ", "))
		}
		table = append(table, line)
	}
	return results.Markdown(out, table)
}
