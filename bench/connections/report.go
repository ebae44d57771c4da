package connections

import (
	"fmt"
	"io"
	"strconv"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/bench/stateful"
)

// row is a system at a rate.
type row struct {
	system string
	rate   int
	list   []sample
}

// sample is one measurement.
type sample struct {
	connect, firstByte, whole *hdr.Histogram // microseconds
	failed, again             float64
	perSecond                 float64
}

func (r *row) add(result *stateful.Result) {
	c, s := result.Client.Total(), result.Server.Total()
	r.list = append(r.list, sample{
		connect: result.Client.Connect[0], firstByte: result.Client.FirstByte[0], whole: result.Client.Whole[0],
		failed: float64(c.Failures()), again: float64(c.Retransmits + s.Retransmits),
		perSecond: float64(c.Completed) / result.Seconds,
	})
}

// figures are the metrics of a row, in the order of the table.
var figures = []struct {
	metric, unit, better string
	of                   func(*sample) float64
}{
	{"completed", "1/s", "higher", func(s *sample) float64 { return s.perSecond }},
	{"failed", "connections", "lower", func(s *sample) float64 { return s.failed }},
	{"repeated", "segments", "lower", func(s *sample) float64 { return s.again }},
	{"connect, p50", "us", "lower", func(s *sample) float64 { return at(s.connect, 50) }},
	{"connect, p99", "us", "lower", func(s *sample) float64 { return at(s.connect, 99) }},
	{"connect, p99.9", "us", "lower", func(s *sample) float64 { return at(s.connect, 99.9) }},
	{"first byte, p50", "us", "lower", func(s *sample) float64 { return at(s.firstByte, 50) }},
	{"first byte, p99", "us", "lower", func(s *sample) float64 { return at(s.firstByte, 99) }},
	{"first byte, p99.9", "us", "lower", func(s *sample) float64 { return at(s.firstByte, 99.9) }},
	{"whole, p50", "us", "lower", func(s *sample) float64 { return at(s.whole, 50) }},
	{"whole, p99", "us", "lower", func(s *sample) float64 { return at(s.whole, 99) }},
	{"whole, p99.9", "us", "lower", func(s *sample) float64 { return at(s.whole, 99.9) }},
}

func at(h *hdr.Histogram, percentile float64) float64 { return float64(h.ValueAtQuantile(percentile)) }

func (r *row) points(c *Config) (list []results.Point) {
	params := map[string]string{"connections/s": strconv.Itoa(r.rate), "services": strconv.Itoa(c.Services),
		"answer": "10 KB", "window": c.Length.String()}
	for _, f := range figures {
		p := results.Point{Experiment: "connections", System: r.system, Params: params, Metric: f.metric, Unit: f.unit,
			Better: f.better}
		for i := range r.list {
			p.Samples = append(p.Samples, f.of(&r.list[i]))
		}
		list = append(list, p)
	}
	return list
}

// print writes medians, a line for each system and rate.
func print(out io.Writer, rows []*row) error {
	table := [][]string{{"connections/s", "", "completed/s", "failed", "segments again",
		"connect, us: p50, p99, p99.9", "first byte", "last byte, from the SYN on"}}
	for _, r := range rows {
		points := r.points(&Config{})
		median := func(i int) string { return fmt.Sprintf("%.0f", points[i].Median()) }
		three := func(i int) string { return median(i) + ", " + median(i+1) + ", " + median(i+2) }
		table = append(table, []string{strconv.Itoa(r.rate), r.system, median(0), median(1), median(2), three(3),
			three(6), three(9)})
	}
	return results.Markdown(out, table)
}
