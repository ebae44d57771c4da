package compare

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/stateless"
)

// atRates reports whether only figures at given rates are measured.
func (c *Config) atRates() bool { return len(c.At)+len(c.AtShares) > 0 }

// isNftables reports whether a system is nftables, in any RPS variant.
func isNftables(name string) bool {
	k, err := kindOf(name)
	return err == nil && k.base() == "nftables"
}

// measureNoDrop searches the no-drop rate to which Config.AtShares refer.
func measureNoDrop(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) error {
	return s.generating(ctx, x, f, stateless.Count, func(lab *stateless.Lab) error {
		r, err := lab.Trial(ctx, stateless.Load{Duration: s.Duration})
		if err != nil {
			return err
		}
		found, err := s.searchNoDrop(ctx, x, lab, r)
		f.noDrop = append(f.noDrop, found.Rate)
		return err
	})
}

// chooseRates turns Config.AtShares into rates.
func (c *comparison) chooseRates() {
	c.rates = slices.Clone(c.At)
	noDrop := func(f *figures) []float64 { return f.noDrop }
	best := c.best("nftables", noDrop, "higher")
	if best == nil || len(c.AtShares) == 0 {
		return
	}
	most := median(best.noDrop)
	fmt.Fprintf(c.Progress, "nftables loses nothing to speak of up to %.3f Mpps (%s)\n", most/1e6,
		c.chosen(best, noDrop))
	for _, share := range c.AtShares {
		const step = 1000 // round the rate to a multiple of it
		if rate := math.Round(share*most/step) * step; rate > 0 && !slices.Contains(c.rates, rate) {
			c.rates = append(c.rates, rate)
		}
	}
}

// measureAt measures processor time and latency at each requested rate.
func measureAt(ctx context.Context, s *stage, x *subject, c *comparison, f *figures) error {
	return s.generating(ctx, x, f, stateless.Timed, func(lab *stateless.Lab) error {
		for _, rate := range c.rates {
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
	percentile             string // of a latency
}

// atMetrics returns the figures at a rate.
func (c *comparison) atMetrics(rate float64) []atMetric {
	list := []atMetric{{"cpu", "cpu_per_packet", "ns", func(f *figures) []float64 {
		if a := f.at[rate]; a != nil {
			return a.cpu
		}
		return nil
	}, ""}}
	for _, p := range percentiles {
		list = append(list, atMetric{"latency", c.way() + ", " + p.name, "us", func(f *figures) []float64 {
			if a := f.at[rate]; a != nil {
				return a.percentiles[p.name]
			}
			return nil
		}, p.name})
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
	for _, rate := range c.rates {
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
	c.printFloor(w)
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
