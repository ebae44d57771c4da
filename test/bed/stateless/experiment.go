package stateless

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/progress"
)

// Experiment is the work of a command: trials of one traffic.
type Experiment struct {
	Config   Config
	Loopback bool // instead of Config's ports: a pair of its own
	Load     Load
	Repeat   int     // trials
	Search   *Search // RFC 2544 instead of Load, then latency at 10, 50, 90 %
	JSON     string  // file for the results; empty for none
	Out      io.Writer
	Progress io.Writer // where to report the progress
}

// latencyShares are the shares of the rate found at which latency is measured.
var latencyShares = [...]float64{0.1, 0.5, 0.9}

// Run runs it.
func (e *Experiment) Run(ctx context.Context) (err error) {
	link := "interfaces that were given"
	if e.Loopback {
		pair, err := NewLoopback(max(e.Config.Tx.Queues, 1))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pair.Close()) }()
		e.Config.Tx.Port, e.Config.Rx.Port = pair.A, pair.B
		link = "veth between two namespaces, native XDP, copy mode"
	}
	if e.Config.Traffic.DestinationMAC == nil {
		if e.Config.Traffic.DestinationMAC, err = e.Config.Rx.Port.MAC(); err != nil {
			return err
		}
	}
	run := results.Begin(link)
	if e.Search != nil {
		err = e.search(ctx, run)
	} else {
		err = e.trials(ctx, run)
	}
	if e.JSON != "" && len(run.Points) > 0 {
		err = errors.Join(err, run.Finish(e.JSON))
	}
	return err
}

// system is what results are of.
const system = "afxdp"

// with opens a lab, and closes it.
func (e *Experiment) with(ctx context.Context, f func(*Lab) error) error {
	lab, err := Open(ctx, e.Config)
	if err != nil {
		return err
	}
	return errors.Join(f(lab), lab.Close())
}

func (e *Experiment) trials(ctx context.Context, run *results.Run) error {
	p := progress.Start(e.Progress, e.Repeat)
	defer p.Done()
	var all []*Result
	for i := range e.Repeat {
		p.Step(fmt.Sprintf("trial %d", i+1))
		err := e.with(ctx, func(l *Lab) error {
			r, err := l.Trial(ctx, e.Load)
			all = append(all, r)
			return err
		})
		if err != nil {
			return err
		}
	}
	w := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sent Mpps\treceived Mpps\tlost %\tflows\tCPU ns/packet\tp50 us\tp99 us\tmax us\t")
	for _, r := range all {
		p50, p99, highest := "-", "-", "-"
		if h := r.Received.Latency; h != nil {
			p50, p99, highest = micros(h.Percentile(50)), micros(h.Percentile(99)), micros(h.Max())
		}
		fmt.Fprintf(w, "%.3f\t%.3f\t%.3f\t%d\t%.0f\t%s\t%s\t%s\t\n", r.Sent.Rate()/1e6, r.Rate()/1e6, 100*r.Loss(),
			r.Received.Flows, r.cpuPerPacket(), p50, p99, highest)
	}
	run.Points = append(run.Points, e.points(all)...)
	if err := w.Flush(); err != nil {
		return err
	}
	for i, r := range all {
		e.remarks(i+1, r)
	}
	return nil
}

func (r *Result) cpuPerPacket() float64 {
	return float64(r.Sent.CPU) / float64(max(r.Sent.Packets, 1))
}

// remarks prints what should not be.
func (e *Experiment) remarks(number int, r *Result) {
	trial := fmt.Sprintf("trial %d", number)
	c := &r.Received
	for _, n := range []struct {
		what string
		n    uint64
	}{
		{"lost", r.Lost()}, {"duplicates", c.Duplicates}, {"reordered", c.Reordered}, {"damaged", c.Damaged},
		{"of a flow that went to another destination before", c.Moved},
		{"of a flow that came from another source before", c.Renamed},
		{"lost by the receiver itself", c.Starved}, {"not of this run", c.Foreign},
	} {
		if n.n > 0 {
			fmt.Fprintf(e.Out, "%s: %d packets %s\n", trial, n.n, n.what)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Drops)) {
		fmt.Fprintf(e.Out, "%s: %s %d\n", trial, k, r.Drops[k])
	}
	for _, v := range c.Violations {
		fmt.Fprintf(e.Out, "%s: %s\n", trial, v)
	}
}

// points are the results as the report reads them.
func (e *Experiment) points(all []*Result) []results.Point {
	params := e.params()
	params["rate"] = strconv.FormatFloat(e.Load.Rate, 'f', -1, 64)
	point := func(metric, unit, better string, value func(*Result) float64) results.Point {
		p := results.Point{Experiment: "generator", System: system, Params: params, Metric: metric, Unit: unit,
			Better: better}
		for _, r := range all {
			p.Samples = append(p.Samples, value(r))
		}
		return p
	}
	out := []results.Point{
		point("sent", "Mpps", "higher", func(r *Result) float64 { return r.Sent.Rate() / 1e6 }),
		point("received", "Mpps", "higher", func(r *Result) float64 { return r.Rate() / 1e6 }),
		point("loss", "%", "lower", func(r *Result) float64 { return 100 * r.Loss() }),
		point("cpu_per_packet", "ns", "lower", (*Result).cpuPerPacket),
	}
	if all[0].Received.Latency == nil {
		return out
	}
	for _, q := range []float64{50, 99, 99.9} {
		out = append(out, point(fmt.Sprintf("latency_p%g", q), "us", "lower", func(r *Result) float64 {
			return float64(r.Received.Latency.Percentile(q)) / float64(time.Microsecond)
		}))
	}
	whole := NewHistogram()
	for _, r := range all {
		whole.Merge(r.Received.Latency)
	}
	out[len(out)-1].Curve = whole.Curve()
	return out
}

// params are the conditions.
func (e *Experiment) params() map[string]string {
	t := e.Config.Traffic
	t.setDefaults()
	family := "4"
	if t.Sources.First.Is6() {
		family = "6"
	}
	var sizes []string
	for _, s := range t.Sizes {
		sizes = append(sizes, fmt.Sprintf("%d:%d", s.Bytes, s.Weight))
	}
	return map[string]string{
		"protocol": t.Protocol.String(), "family": family, "flows": strconv.Itoa(t.Flows),
		"sizes":  strings.Join(sizes, ","),
		"queues": strconv.Itoa(max(e.Config.Tx.Queues, 1)), "receiver": e.Config.Rx.Method.String(),
	}
}

// search runs the search.
func (e *Experiment) search(ctx context.Context, run *results.Run) error {
	s := *e.Search
	if e.Progress != nil {
		began := time.Now()
		s.Progress = func(st Step) {
			verdict := "good"
			if !st.Good {
				verdict = "bad"
			}
			fmt.Fprintf(e.Progress, "%4.0fs  %2d %-8s %9.0f packets/s offered, %9.0f sent, %.4f %% lost: %s\n",
				time.Since(began).Seconds(), st.Number, st.Why, st.Target, st.Outcome.Rate, 100*st.Outcome.Loss(),
				verdict)
		}
	}
	return e.with(ctx, func(lab *Lab) error {
		found, err := s.Run(ctx, lab)
		if err != nil {
			return err
		}
		limited, remark := "", ""
		if found.Limited {
			remark = "the sender could send no more"
			limited = " (" + remark + ")"
		}
		fmt.Fprintf(e.Out, "%.0f packets/s, %.4f %% lost, %d trials%s\n", found.Rate, 100*found.Loss, found.Trials,
			limited)
		run.Points = append(run.Points, results.Point{
			Experiment: "rfc2544", System: system, Params: e.params(), Metric: "rate", Unit: "Mpps",
			Better:  "higher",
			Samples: []float64{found.Rate / 1e6}, Remark: remark,
		})
		if e.Config.Rx.Method != Full || found.Rate == 0 {
			return nil
		}
		return e.latencies(ctx, lab, found.Rate, run)
	})
}

// latencies measures the latency at shares of a rate.
func (e *Experiment) latencies(ctx context.Context, lab *Lab, rate float64, run *results.Run) error {
	d := e.Search.Duration
	setDefault(&d, time.Second)
	w := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "packets/s\tp50 us\tp99 us\tp99.9 us\tmax us\tlost %\t")
	for _, share := range latencyShares {
		r, err := lab.Trial(ctx, Load{Rate: rate * share, Duration: d})
		if err != nil {
			return err
		}
		h := r.Received.Latency
		fmt.Fprintf(w, "%.0f\t%s\t%s\t%s\t%s\t%.4f\t\n", rate*share, micros(h.Percentile(50)), micros(h.Percentile(99)),
			micros(h.Percentile(99.9)), micros(h.Max()), 100*r.Loss())
		params := e.params()
		params["share"] = fmt.Sprintf("%g", share)
		run.Points = append(run.Points, results.Point{
			Experiment: "latency", System: system, Params: params, Metric: "latency_p50", Unit: "us",
			Better:  "lower",
			Samples: []float64{float64(h.Percentile(50)) / float64(time.Microsecond)}, Curve: h.Curve(),
		})
	}
	return w.Flush()
}
