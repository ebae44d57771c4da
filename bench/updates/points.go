package updates

import (
	"strconv"
	"time"

	"sluice.dev/sluice/bench/results"
)

// percentiles are the percentiles in a curve.
var percentiles = [...]float64{0, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.99, 100}

// curve is the distribution of a sorted list, in milliseconds.
func curve(sorted []time.Duration) (c [][2]float64) {
	if len(sorted) == 0 {
		return nil
	}
	for _, p := range percentiles {
		at := sorted[min(int(float64(len(sorted))*p/100), len(sorted)-1)]
		c = append(c, [2]float64{p, ms(at)})
	}
	return c
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// points is the result in the common format of reports. The latencies must be sorted.
func (l *lab) points() []results.Point {
	r := l.result
	params := map[string]string{
		"server": l.Server, "services": strconv.Itoa(l.Services), "endpoints": strconv.Itoa(l.Endpoints),
		"changes per second": strconv.Itoa(l.Rate),
	}
	point := func(metric, unit string, value float64) results.Point {
		return results.Point{Experiment: "updates", System: "sluice", Params: params, Metric: metric, Unit: unit,
			Better: "lower", Samples: []float64{value}}
	}
	latency := point("change to first packet, p50", "ms", ms(r.Latency.P50))
	latency.Curve = curve(r.latencies)
	return []results.Point{
		latency,
		point("change to first packet, p99", "ms", ms(r.Latency.P99)),
		point("change to first packet, p99.9", "ms", ms(r.Latency.P999)),
		point("change to first packet, max", "ms", ms(r.Latency.Max)),
		point("changes that no packet was seen of", "changes", float64(r.Unseen)),
		point("flows broken", "flows", float64(r.Broken)),
		point("requests of another Service without an answer", "requests", float64(r.Unanswered)),
		point("first table, after everything was read", "ms", ms(r.FirstTable)),
		point("resident memory, most", "MiB", float64(r.Memory.Most)/(1<<20)),
		point("processor time of the daemon, a second of changes", "s", r.CPU.Seconds()/r.Changed.Seconds()),
	}
}
