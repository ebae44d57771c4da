package l2fwd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sluice.dev/sluice/bench/progress"
	"sluice.dev/sluice/bench/results"
)

// Experiment is how to measure; the zero value of no field but JSON and Variants is useful,
// see DefaultExperiment.
type Experiment struct {
	Out      io.Writer
	Progress io.Writer     // nil: none
	JSON     string        // file for the results; empty: none
	Repeat   int           // interleaved samples of each figure
	Window   time.Duration // 0: steps only, for a machine that others use, too
	Warmup   time.Duration
	Steps    int      // of one sample of the time of a step
	Variants []string // names of knobs; empty: all
	// SourceCPU sends, and does the receiving half of the softirq; WorkerCPU forwards.
	SourceCPU, WorkerCPU int
}

// DefaultExperiment is the full form, for two CPUs.
func DefaultExperiment() Experiment {
	return Experiment{Repeat: 5, Window: time.Second, Warmup: 300 * time.Millisecond, Steps: 2000, SourceCPU: 0,
		WorkerCPU: 1}
}

const wire = "veth, native XDP, copy mode"

// variant is the default with one thing changed.
type variant struct {
	name    string
	packets int // waiting at each step of the step measurement; 64 if 0
	change  func(*setup)
}

func rings(n int) func(*setup) {
	return func(s *setup) { s.config.RingSize = n }
}

func batch(n int) func(*setup) { return func(s *setup) { s.config.Batch = n } }

// defers is NAPI deferral of a device.
func defers(host, dev, timeoutNanos string) func(*setup) {
	return func(s *setup) {
		s.devices = []setting{{host, dev, "napi_defer_hard_irqs", "2"}, {host, dev, "gro_flush_timeout", timeoutNanos}}
	}
}

func threaded(host, dev string) func(*setup) {
	return func(s *setup) { s.devices = []setting{{host, dev, "threaded", "1"}} }
}

// knobs are what is compared. The first is the default.
var knobs = []variant{
	{"default", 0, func(*setup) {}},
	{"budget 32", 0, func(s *setup) { s.config.TxBudget = 32 }},
	{"batch 16", 16, batch(16)},
	{"batch 32", 32, batch(32)},
	{"batch 128", 128, batch(128)},
	{"batch 256", 256, batch(256)},
	{"rings 256", 0, rings(256)},
	{"rings 1024", 0, rings(1024)},
	{"rings 4096", 0, rings(4096)},
	{"4 KiB frames", 0, func(s *setup) { s.config.FrameSize = 4096 }},
	{"coalesce never", 0, func(s *setup) { s.config.Coalesce = -1 }},
	{"coalesce 50us", 0, func(s *setup) { s.config.Coalesce = 50 * time.Microsecond }},
	{"coalesce 100us", 0, func(s *setup) { s.config.Coalesce = 100 * time.Microsecond }},
	{"spin 0", 0, func(s *setup) { s.config.Spin = time.Nanosecond }},
	{"spin 20us always", 0, func(s *setup) { s.config.Spin = 20 * time.Microsecond }},
	{"spin 200us", 0, func(s *setup) { s.config.Spin = 200 * time.Microsecond }},
	{"never sleep", 0, func(s *setup) { s.config.Spin = -1 }},
	{"deferral 50us gateway", 0, defers("gateway", "front0", "50000")},
	{"deferral 50us backend", 0, defers("backend", "eth0", "50000")},
	{"deferral 200us backend", 0, defers("backend", "eth0", "200000")},
	{"threaded gateway", 0, threaded("gateway", "front0")},
	{"threaded backend", 0, threaded("backend", "eth0")},
}

// Knobs are the names that Experiment.Variants may have.
func Knobs() (names []string) {
	for _, v := range knobs {
		names = append(names, v.name)
	}
	return names
}

// chosen are the variants to measure, the default among them.
func (e *Experiment) chosen() (list []variant, err error) {
	for _, name := range e.Variants {
		if !slices.Contains(Knobs(), name) {
			return nil, fmt.Errorf("l2fwd: no knob %q, there are %s", name, strings.Join(Knobs(), ", "))
		}
	}
	for i, v := range knobs {
		if i == 0 || len(e.Variants) == 0 || slices.Contains(e.Variants, v.name) {
			list = append(list, v)
		}
	}
	return list, nil
}

// figures are the samples of one variant.
type figures struct {
	step, mpps, worker, source, system, lost, p50, p99 []float64
}

// MeasureKnobs compares settings of sockets and devices, interleaved: the time of a step on one
// thread, and a flood that source and worker share the machine for.
func MeasureKnobs(ctx context.Context, e Experiment) error {
	list, err := e.chosen()
	if err != nil {
		return err
	}
	run := results.Begin(wire)
	all := make([]figures, len(list))
	p := progress.Start(e.Progress, e.Repeat*len(list))
	for round := range e.Repeat {
		for i, v := range list {
			p.Step(fmt.Sprintf("round %d, %s", round+1, v.name))
			if err := e.sample(ctx, v, &all[i]); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
		}
	}
	p.Done()
	for i, v := range list {
		run.Points = append(run.Points, all[i].points(v.name)...)
	}
	return errors.Join(printKnobs(e.Out, list, all), run.Finish(e.JSON))
}

func (e *Experiment) sample(ctx context.Context, v variant, f *figures) error {
	s := setup{queues: 1}
	s.config.CPUs = []int{e.WorkerCPU}
	v.change(&s)
	packets := v.packets
	if packets == 0 {
		packets = 64
	}
	step := stepTrial{setup: s, packets: packets, cpu: e.WorkerCPU, steps: e.Steps}
	so, err := step.run(ctx)
	if err != nil {
		return err
	}
	f.step = append(f.step, so.worker)
	if e.Window == 0 {
		return nil
	}
	load := flood{setup: s, sourceCPU: e.SourceCPU, warmup: e.Warmup, window: e.Window}
	o, err := load.run(ctx)
	if err != nil {
		return err
	}
	f.mpps = append(f.mpps, o.mpps())
	f.worker = append(f.worker, o.perPacket(o.worker))
	f.source = append(f.source, o.perPacket(o.source))
	f.system = append(f.system, o.perPacket(o.system))
	f.lost = append(f.lost, o.lost())
	f.p50 = append(f.p50, micros(o.latency.quantile(0.5)))
	f.p99 = append(f.p99, micros(o.latency.quantile(0.99)))
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (f *figures) points(knob string) []results.Point {
	point := func(metric, unit, better string, samples []float64) results.Point {
		return results.Point{Experiment: "sockets", System: "l2fwd", Params: map[string]string{"knob": knob},
			Metric: metric, Unit: unit, Better: better, Samples: samples}
	}
	step := point("step_ns_per_packet", "ns", "lower", f.step)
	if len(f.mpps) == 0 {
		return []results.Point{step}
	}
	return []results.Point{
		step,
		point("rate", "Mpps", "higher", f.mpps),
		point("worker_ns_per_packet", "ns", "lower", f.worker),
		point("source_ns_per_packet", "ns", "lower", f.source),
		point("system_ns_per_packet", "ns", "lower", f.system),
		point("lost", "%", "lower", f.lost),
		point("latency_p50", "us", "lower", f.p50),
		point("latency_p99", "us", "lower", f.p99),
	}
}

func printKnobs(out io.Writer, list []variant, all []figures) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w,
		"knob\tstep ns\tto default\tMpps\tto default\tworker ns\tsource ns\tsystem ns\tlost %\tp50 us\tp99 us\t")
	step, rate := median(all[0].step), median(all[0].mpps)
	for i, v := range list {
		f := &all[i]
		if len(f.mpps) == 0 {
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t\n", v.name, median(f.step), median(f.step)/step)
			continue
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.3f\t%.2f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.0f\t\n", v.name,
			median(f.step), median(f.step)/step, median(f.mpps), median(f.mpps)/rate,
			median(f.worker), median(f.source), median(f.system), median(f.lost), median(f.p50), median(f.p99))
	}
	return w.Flush()
}
