package l2fwd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"sluice.dev/sluice/bench/progress"
	"sluice.dev/sluice/bench/results"
)

// loads are the parts of the greatest rate that CPU time is measured at.
var loads = []float64{0, 0.01, 0.1, 0.5, 1}

// idleTarget is what a queue without traffic may cost, in percent of a core.
const idleTarget = 1

// AsWorked, for a spin time, is the gateway's default: bounded by the time spent on packets.
const AsWorked = time.Duration(-1)

func spinName(spin time.Duration) string {
	if spin == AsWorked {
		return "as worked"
	}
	return spin.String()
}

// MeasureProportional finds the rate that one worker forwards when it is offered more than it
// takes, and how much of a core the worker uses at parts of it, for each spin time: silence
// should cost next to nothing, and CPU time should follow load.
func MeasureProportional(ctx context.Context, e Experiment, spins []time.Duration) error {
	run := results.Begin(wire)
	p := progress.Start(e.Progress, e.Repeat*(1+len(loads)*len(spins)))
	var rates []float64
	for range e.Repeat {
		p.Step("the greatest rate")
		o, err := e.at(ctx, 0, 0)
		if err != nil {
			return err
		}
		rates = append(rates, o.mpps()*1e6)
	}
	full := median(rates)
	cells := make([]cell, len(spins)*len(loads))
	for range e.Repeat {
		for i, spin := range spins {
			for j, load := range loads {
				p.Step(fmt.Sprintf("spin %s, %g %% of %.3f Mpps", spinName(spin), 100*load, full/1e6))
				rate := load * full
				if rate == 0 {
					rate = -1
				}
				o, err := e.at(ctx, rate, spin)
				if err != nil {
					return err
				}
				cells[i*len(loads)+j].add(&o)
			}
		}
	}
	p.Done()
	for i, spin := range spins {
		for j, load := range loads {
			run.Points = append(run.Points, cells[i*len(loads)+j].points(spin, load)...)
		}
	}
	return errors.Join(printProportional(e.Out, full, spins, cells), run.Finish(e.JSON))
}

// at measures one load. Spin 0 is the default, 1 ns no spinning.
func (e *Experiment) at(ctx context.Context, rate float64, spin time.Duration) (outcome, error) {
	t := flood{rate: rate, sourceCPU: e.SourceCPU, warmup: e.Warmup, window: e.Window}
	t.queues, t.config.CPUs = 1, []int{e.WorkerCPU}
	if spin != AsWorked {
		t.config.Spin = spin
	}
	return t.run(ctx)
}

// cell is the samples of one load and spin time.
type cell struct{ core, mpps, lost, sleeps, p50, p99 []float64 }

func (c *cell) add(o *outcome) {
	c.core = append(c.core, 100*o.worker.Seconds()/o.seconds)
	c.mpps = append(c.mpps, o.mpps())
	c.lost = append(c.lost, o.lost())
	c.sleeps = append(c.sleeps, float64(o.sleeps)/o.seconds)
	c.p50 = append(c.p50, micros(o.latency.quantile(0.5)))
	c.p99 = append(c.p99, micros(o.latency.quantile(0.99)))
}

func (c *cell) points(spin time.Duration, load float64) []results.Point {
	point := func(metric, unit string, samples []float64) results.Point {
		return results.Point{Experiment: "proportional", System: "l2fwd",
			Params: map[string]string{"spin": spinName(spin), "load": fmt.Sprintf("%g %%", 100*load)},
			Metric: metric, Unit: unit, Better: "lower", Samples: samples}
	}
	core := point("core", "%", c.core)
	if load == 0 {
		target := float64(idleTarget)
		core.Target = &target
		return []results.Point{core}
	}
	return []results.Point{core, point("latency_p50", "us", c.p50), point("latency_p99", "us", c.p99),
		point("lost", "%", c.lost)}
}

func printProportional(out io.Writer, full float64, spins []time.Duration, cells []cell) error {
	fmt.Fprintf(out, "the greatest rate is %.3f Mpps\n", full/1e6)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "spin\tload %\tMpps\tcore %\tsleeps/s\tlost %\tp50 us\tp99 us\t")
	for i, spin := range spins {
		for j, load := range loads {
			c := &cells[i*len(loads)+j]
			fmt.Fprintf(w, "%s\t%g\t%.3f\t%.2f\t%.0f\t%.2f\t%.0f\t%.0f\t\n", spinName(spin), 100*load,
				median(c.mpps), median(c.core), median(c.sleeps), median(c.lost), median(c.p50), median(c.p99))
		}
	}
	return w.Flush()
}
