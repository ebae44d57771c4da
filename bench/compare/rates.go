package compare

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/bench/stateless"
)

// measureAt measures processor time and latency at each requested rate.
func measureAt(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) error {
	return s.generating(ctx, x, f, stateless.Timed, func(lab *stateless.Lab) error {
		for _, rate := range s.At {
			r, used, err := s.trialAt(ctx, lab, rate)
			if err != nil {
				return err
			}
			a := add(&f.at, rate, r)
			a.cpu = append(a.cpu, float64(used.Busy)/float64(r.Received.Packets))
		}
		return nil
	})
}

// atMetric is a figure of Config.At, at one rate.
type atMetric struct {
	experiment, name, unit string
	of                     func(*figures) []float64
}

// atMetrics are the figures at a rate.
func (c *comparison) atMetrics(rate float64) []atMetric {
	list := []atMetric{{"cpu", "cpu_per_packet", "ns", func(f *figures) []float64 {
		if a := f.at[rate]; a != nil {
			return a.cpu
		}
		return nil
	}}}
	for _, p := range percentiles {
		list = append(list, atMetric{"latency", c.way() + ", " + p.name, "us", func(f *figures) []float64 {
			if a := f.at[rate]; a != nil {
				return a.percentiles[p.name]
			}
			return nil
		}})
	}
	return list
}

// printAt writes the table of Config.At.
func (c *comparison) printAt(w io.Writer) {
	fmt.Fprint(w, "system\tMpps\tns CPU/packet\tx nftables' best\t")
	for _, p := range percentiles {
		fmt.Fprintf(w, "%s us\t", p.name)
	}
	fmt.Fprint(w, "sent\tarrived\t\n")
	for _, rate := range c.At {
		cpu := c.atMetrics(rate)[0].of
		nftables := c.best("nftables", cpu, "lower")
		for _, f := range c.systems {
			a := f.at[rate]
			if a == nil {
				continue
			}
			ratio := "-"
			if nftables != nil {
				ratio = fmt.Sprintf("%.2f", median(ratios(a.cpu, cpu(nftables))))
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
		for _, m := range c.atMetrics(rate) {
			p := c.point(m.experiment, f, m.name, m.unit, "lower", m.of(f))
			p.Params["rate"] = strconv.FormatFloat(rate, 'f', -1, 64)
			list = append(list, p)
		}
	}
	return list
}
