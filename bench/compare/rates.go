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

// printAt writes the table of Config.At.
func (c *comparison) printAt(w io.Writer) {
	fmt.Fprint(w, "system\tMpps\tns CPU/packet\tx nftables\t")
	for _, p := range percentiles {
		fmt.Fprintf(w, "%s us\t", p.name)
	}
	fmt.Fprint(w, "sent\tarrived\t\n")
	nftables := c.named("nftables")
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
