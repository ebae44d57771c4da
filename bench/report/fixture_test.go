package report

import (
	"maps"
	"time"

	"sluice.dev/sluice/bench/results"
)

func ptr(v float64) *float64 { return &v }

// fixture is a small laboratory with invented figures: a sweep of Services, one of flows, a
// distribution, bars, a missed target, names that must be escaped, and a command that failed.
func fixture() []*results.Run {
	machine := results.Machine{CPU: "Test CPU", Cores: 2, MemoryMB: 2048, Kernel: "6.18.0", Go: "go1.26", Link: "veth",
		Hypervisor: "none", HugePages: "madvise", CC: "cc 12"}
	compare := &results.Run{
		Name: "compare", Command: "sluice-bench compare --systems 'sluice <nftables>'", Began: time.Date(2026, 1, 2, 3,
			4, 5, 0, time.UTC), Seconds: 65, Stolen: 0.125,
		Version: "v1-2-gabc", Machine: machine,
	}
	for i, services := range []string{"1", "100", "10000"} {
		for j, system := range []string{"sluice", "nftables <RPS> & co"} {
			compare.Points = append(compare.Points, results.Point{
				Experiment: "throughput", System: system, Params: map[string]string{"services": services,
					"frame": "64"},
				Metric: "rate", Unit: "Mpps", Better: "higher", Samples: []float64{1.0 / float64(1+i*j), 1.1,
					0.9 / float64(1+j)},
			})
		}
	}
	compare.Points = append(compare.Points,
		results.Point{Experiment: "throughput", System: "sluice", Params: map[string]string{"against": "nftables",
			"queues": "2"}, Metric: "ratio", Unit: "ratio", Better: "higher", Samples: []float64{1.05},
			Target: ptr(1.15), Remark: "the <sender> could send no more"},
		results.Point{Experiment: "cpu", System: "sluice", Params: map[string]string{"against": "nftables",
			"queues": "2"}, Metric: "ratio", Unit: "ratio", Better: "lower", Samples: []float64{0.5}, Target: ptr(1)},
		results.Point{Experiment: "cpu", System: "sluice", Metric: "cpu_per_packet", Unit: "ns", Better: "lower",
			Samples: []float64{900}},
		results.Point{Experiment: "cpu", System: "nftables", Metric: "cpu_per_packet", Unit: "ns", Better: "lower",
			Samples: []float64{1800, 1900}},
		results.Point{Experiment: "latency", System: "sluice", Params: map[string]string{"load": "50"},
			Metric: "one-way, p50", Unit: "us", Better: "lower", Samples: []float64{12},
			Curve: [][2]float64{{0, 4}, {50, 12}, {99, 40}, {99.9, 90}, {100, 700}}},
		results.Point{Experiment: "latency", System: "nftables", Params: map[string]string{"load": "50"},
			Metric: "one-way, p50", Unit: "us", Better: "lower", Samples: []float64{15},
			Curve: [][2]float64{{0, 6}, {50, 15}, {99, 60}, {100, 1200}}},
	)
	pipeline := &results.Run{Name: "pipeline", Command: "sluice-bench pipeline", Began: time.Date(2026, 1, 2, 3, 0, 0,
		0, time.UTC), Seconds: 30, Version: "v1", Machine: machine}
	for i, flows := range []string{"1k", "100k", "1M"} {
		for _, system := range []string{"sluice", "c-reference"} {
			pipeline.Points = append(pipeline.Points, results.Point{Experiment: "pipeline", System: system,
				Params: map[string]string{"flows": flows, "headers": "hot"},
				Metric: "ns_per_packet", Unit: "ns", Better: "lower", Samples: []float64{20 + float64(10*i)}})
		}
	}
	for i, load := range []string{"0", "10", "50", "100"} {
		for j, system := range []string{"l2fwd", "sluice"} {
			pipeline.Points = append(pipeline.Points, results.Point{Experiment: "proportional", System: system,
				Params: map[string]string{"load": load},
				Metric: "cpu", Unit: "% of a core", Better: "lower", Samples: []float64{0.5 + float64(30*i+5*j)},
				Target: ptr(90)})
		}
	}
	latencyAt := &results.Run{Name: "latency-at", Command: "sluice-bench compare --at 100k",
		Began: time.Date(2026, 1, 2, 3, 30, 0, 0, time.UTC), Seconds: 1, Version: "v1", Machine: machine}
	for i, h := range headlines {
		p := results.Point{Experiment: h.Experiment, System: h.System, Params: maps.Clone(h.Params), Metric: h.Metric,
			Unit:   "ratio",
			Better: "lower", Samples: []float64{1 + float64(i)/8}, Target: ptr(1.25)}
		delete(p.Params, "backends") // it must not have any
		switch h.Run {
		case pipeline.Name:
			pipeline.Points = append(pipeline.Points, p)
		case latencyAt.Name:
			latencyAt.Points = append(latencyAt.Points, p)
		default:
			p.Better = "higher"
			compare.Points = append(compare.Points, p)
		}
	}
	failed := &results.Run{Name: "steps", Command: "sluice-bench steps", Began: time.Date(2026, 1, 2, 4, 0, 0, 0,
		time.UTC), Seconds: 1, Version: "v1", Machine: machine, Failed: "exit status 1: no C compiler <cc>"}
	return []*results.Run{pipeline, compare, failed, latencyAt}
}
