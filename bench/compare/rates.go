package compare

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/bench/stateless"
)

// atRate is what was measured at one of Config.At, a sample per round.
type atRate struct {
	cpu         []float64 // processor time of the whole machine per packet that arrived, nanoseconds
	percentiles map[string][]float64
	sent        []float64 // share of the rate
	delivered   []float64
}

// measureAt measures processor time and latency at each requested rate.
func measureAt(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) error {
	if f.at == nil {
		f.at = map[float64]*atRate{}
	}
	return s.generating(ctx, x, f, stateless.Timed, func(lab *stateless.Lab) error {
		for _, rate := range s.At {
			r, used, err := s.trialAt(ctx, lab, rate)
			if err != nil {
				return err
			}
			a := f.at[rate]
			if a == nil {
				a = &atRate{percentiles: map[string][]float64{}}
				f.at[rate] = a
			}
			a.cpu = append(a.cpu, float64(used.Busy)/float64(r.Received.Packets))
			a.sent = append(a.sent, r.Sent.Rate()/rate)
			a.delivered = append(a.delivered, 1-r.Loss())
			for _, p := range percentiles {
				a.percentiles[p.name] = append(a.percentiles[p.name],
					float64(p.at(r.Received.Latency))/float64(time.Microsecond))
			}
		}
		return nil
	})
}

// printAt writes the table of Config.At.
func (c *comparison) printAt(w io.Writer) {
	fmt.Fprint(w, "system\tMpps\tns CPU/packet\tx nftables\t")
	for _, p := range percentiles {
		fmt.Fprintf(w, "%s us\t", p.name)
	}
	fmt.Fprint(w, "sent\tarrived\t\n")
	var nftables *figures
	for _, f := range c.systems {
		if f.kind.name == "nftables" {
			nftables = f
		}
	}
	for _, rate := range c.At {
		for _, f := range c.systems {
			a := f.at[rate]
			if a == nil {
				continue
			}
			ratio := "-"
			if nftables != nil && nftables.at[rate] != nil {
				ratio = fmt.Sprintf("%.2f", median(ratios(a.cpu, nftables.at[rate].cpu)))
			}
			fmt.Fprintf(w, "%s\t%.3f\t%.0f\t%s\t", f.kind.name, rate/1e6, median(a.cpu), ratio)
			for _, p := range percentiles {
				fmt.Fprintf(w, "%.0f\t", median(a.percentiles[p.name]))
			}
			fmt.Fprintf(w, "%.0f %%\t%.2f %%\t\n", 100*median(a.sent), 100*median(a.delivered))
		}
	}
}

// atPoints are the figures of Config.At.
func (c *comparison) atPoints(f *figures) (list []results.Point) {
	for _, rate := range slices.Sorted(maps.Keys(f.at)) {
		a := f.at[rate]
		points := []results.Point{c.point("cpu", f, "cpu_per_packet", "ns", "lower", a.cpu)}
		for _, p := range percentiles {
			points = append(points, c.point("latency", f, "one-way, "+p.name, "us", "lower", a.percentiles[p.name]))
		}
		for _, p := range points {
			p.Params["rate"] = strconv.FormatFloat(rate, 'f', -1, 64)
			list = append(list, p)
		}
	}
	return list
}
