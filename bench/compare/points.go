package compare

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/test/bed/stateless"
)

// figures are the samples of one system, one per round. A round without a sample holds missing, so
// that equal indices in two lists belong to the same round.
type figures struct {
	kind   kind
	failed error // why the system is no longer measured; nil if it is. Earlier samples stay

	offered, rate []float64 // packets per second sent and received, as fast as possible
	noDrop        []float64 // packets per second
	limited       int       // rounds whose noDrop is only the generator's limit
	// cpu is processor time of the whole machine per packet that arrived, in nanoseconds, at the
	// highest rate; cpuSame is the same at the rate common to all systems. user, system and
	// interrupts are the parts of cpuSame, by ticks.
	cpu, cpuSame, user, system, interrupts []float64
	delivered                              []float64 // share of packets that arrived at that rate
	latency                                map[int]*latency
	at                                     map[float64]*latency // by rate of Config.At
	bulk                                   map[bulkLoad]*bulk   // of Config.Bulk
	lost                                   losses               // at the highest rate, all rounds
	sent, received                         uint64               // the same
	// late are packets that arrived in a later trial than theirs, or that the generator did not
	// send
	late  uint64
	flows []int // number of flows that arrived, in each check
}

// latency is the latency at one load or rate, in microseconds; a sample per round.
type latency struct {
	// cpu is, at a rate, processor time of the whole machine per packet that arrived, in
	// nanoseconds.
	cpu         []float64
	percentiles map[string][]float64 // by name
	sent        []float64            // packets sent, as a share of the requested rate
	delivered   []float64            // share of packets that arrived: only these have a latency
	all         *stateless.Histogram
}

// add appends the result of a trial in which packets arrived to the latencies at a load or rate.
func add[K comparable](known *map[K]*latency, at K, r *stateless.Result) *latency {
	if *known == nil {
		*known = map[K]*latency{}
	}
	l := (*known)[at]
	if l == nil {
		l = &latency{percentiles: map[string][]float64{}, all: stateless.NewHistogram()}
		(*known)[at] = l
	}
	h := r.Received.Latency
	l.all.Merge(h)
	l.sent = append(l.sent, r.Sent.Rate()/r.Load.Rate)
	l.delivered = append(l.delivered, 1-r.Loss())
	for _, p := range percentiles {
		l.percentiles[p.name] = append(l.percentiles[p.name], float64(p.at(h))/float64(time.Microsecond))
	}
	return l
}

// percentiles are the reported percentiles and their names. 100 is the maximum.
var percentiles = []percentile{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}}

type percentile struct {
	name    string
	percent float64
}

func (p percentile) at(h *stateless.Histogram) time.Duration {
	if p.percent == 100 {
		return h.Max()
	}
	return h.Percentile(p.percent)
}

// loads are the loads at which latency is measured, in percent of the no-drop rate.
var loads = []int{10, 50, 90}

// comparison holds the figures of all systems with one number of Services.
type comparison struct {
	*Config
	Senders
	services int
	systems  []*figures
	cpuRate  float64   // packets per second, common to all systems
	rates    []float64 // packets per second, rates at which all systems are measured
	// floor is the wait on an idle CPU, in microseconds, by percentile; a sample per round.
	floor map[string][]float64
}

// of finds a system that was measured, or nil.
func (c *comparison) of(name string) *figures {
	if f := c.named(name); f != nil && len(f.rate) > 0 {
		return f
	}
	return nil
}

// missing marks a round without a sample.
var missing = math.NaN()

// known returns the samples without missing ones.
func known(list []float64) []float64 { return slices.DeleteFunc(slices.Clone(list), math.IsNaN) }

// ratios divides samples of the same rounds, because a disturbance of the machine affects both
// systems. A round in which either system has no sample has no ratio.
func ratios(a, b []float64) (list []float64) {
	for i := range min(len(a), len(b)) {
		if b[i] > 0 && !math.IsNaN(a[i]) {
			list = append(list, a[i]/b[i])
		}
	}
	return list
}

// points are the figures of the comparison in the common result format.
func (c *comparison) points() (list []results.Point) {
	for _, f := range c.systems {
		list = append(list, c.atPoints(f)...)
		list = append(list, c.bulkPoints(f)...)
		if len(f.rate) == 0 {
			continue
		}
		list = append(list, c.point("throughput", f, "rate", "Mpps", "higher", scaled(f.rate, 1e-6)))
		if len(f.cpu) > 0 {
			list = append(list, c.point("cpu", f, "cpu_per_packet at the highest rate", "ns", "lower", f.cpu))
		}
		if len(f.cpuSame) > 0 {
			list = append(list, c.point("cpu", f, "cpu_per_packet, all at one rate", "ns", "lower", f.cpuSame))
		}
		if len(f.noDrop) > 0 {
			p := c.point("throughput", f, "no_drop_rate", "Mpps", "higher", scaled(f.noDrop, 1e-6))
			if f.limited > 0 {
				p.Remark = fmt.Sprintf("in %d of %d rounds all that the generator could send", f.limited, len(f.noDrop))
			}
			list = append(list, p)
		}
		list = append(list, c.latencyPoints(f)...)
	}
	list = append(append(list, c.ratioPoints()...), c.bulkRatioPoints()...)
	return append(list, c.beforePoints()...)
}

func (c *comparison) point(
	experiment string, f *figures, metric, unit, better string, samples []float64,
) results.Point {
	p := results.Point{
		Experiment: experiment, System: f.kind.name, Params: c.params(), Metric: metric, Unit: unit, Better: better,
		Samples: known(samples),
	}
	if f.kind.name == withOptions {
		p.Params["sluice_options"] = c.Options
	}
	return p
}

// params are the conditions that all figures of the comparison share.
func (c *comparison) params() map[string]string {
	params := map[string]string{
		"services": strconv.Itoa(c.services), "flows": strconv.Itoa(c.Flows), "frame": strconv.Itoa(c.Frame),
		"queues": strconv.Itoa(c.Queues), "sender_cpus": wording.Numbers(c.CPUs, ","),
	}
	if c.BothWays {
		params["ways"] = "both"
	}
	return params
}

// way names the path that a latency covers.
func (c *Config) way() string {
	if c.BothWays {
		return "round trip"
	}
	return "one-way"
}

// latencyPoints are the absolute latencies, and the differences to the kernel's plain forwarding at
// the same share of its own rate.
func (c *comparison) latencyPoints(f *figures) (list []results.Point) {
	base := c.of("kernel")
	for _, load := range slices.Sorted(maps.Keys(f.latency)) {
		l := f.latency[load]
		for _, p := range percentiles {
			x := c.point("latency", f, c.way()+", "+p.name, "us", "lower", l.percentiles[p.name])
			x.Params["load"] = strconv.Itoa(load)
			if p.name == "p50" {
				x.Curve = l.all.Curve()
			}
			list = append(list, x)
			if base == nil || base == f || base.latency[load] == nil {
				continue
			}
			added := differences(l.percentiles[p.name], base.latency[load].percentiles[p.name])
			y := c.point("latency", f, "added to kernel forwarding, "+p.name, "us", "lower", added)
			y.Params["load"] = strconv.Itoa(load)
			list = append(list, y)
		}
	}
	return list
}

func differences(a, b []float64) (list []float64) {
	for i := range min(len(a), len(b)) {
		if d := a[i] - b[i]; !math.IsNaN(d) {
			list = append(list, d)
		}
	}
	return list
}

func scaled(list []float64, by float64) []float64 {
	out := make([]float64, len(list))
	for i, v := range list {
		out[i] = v * by
	}
	return out
}

// span are the smallest and the largest sample.
func span(list []float64) (low, high float64) {
	if list = known(list); len(list) == 0 {
		return missing, missing
	}
	return slices.Min(list), slices.Max(list)
}

func median(list []float64) float64 {
	return (&results.Point{Samples: known(list)}).Median()
}

// chooseRate chooses the rate at which processor time is compared: half the throughput of the
// slowest translating system, so that no system is near its limit.
func (c *comparison) chooseRate() {
	for _, translating := range [...]bool{true, false} {
		for _, f := range c.systems {
			if m := median(f.rate); f.failed == nil && f.kind.translates == translating && m > 0 && (c.cpuRate == 0 ||
				m/2 < c.cpuRate) {
				c.cpuRate = m / 2
			}
		}
		if c.cpuRate > 0 {
			break // consider other systems only if none translates
		}
	}
	fmt.Fprintf(c.Progress, "processor time is compared at %.3f Mpps\n", c.cpuRate/1e6)
}
