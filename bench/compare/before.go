package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

// BeforeRepeat is the default number of rounds of a comparison with Config.Before: the confidence
// interval of their median is from the sixth smallest to the sixth largest sample.
const BeforeRepeat = 20

// checkBefore adds the older build after this one. Unless other systems are named, only these two
// are measured.
func (c *Config) checkBefore() error {
	named := slices.Contains(c.Systems, paired.Before)
	switch {
	case c.Before == "" && c.FailSlower:
		return errors.New("--fail-slower is about --before: name an older sluice with it")
	case c.Before == "" && named:
		return fmt.Errorf("system %s is an older build: name its binary with --before", paired.Before)
	case c.Before == "":
		return nil
	case len(c.Systems) == 0:
		c.Systems = []string{ours}
	}
	at := slices.Index(c.Systems, ours)
	if at < 0 {
		return fmt.Errorf("--before is compared with system %s, which is not among %v: add it to --systems", ours,
			c.Systems)
	}
	list := slices.DeleteFunc(slices.Clone(c.Systems), func(s string) bool { return s == paired.Before })
	c.Systems = slices.Insert(list, slices.Index(list, ours)+1, paired.Before)
	return nil
}

// findBefore returns the older build; the zero value without one.
func (c *Config) findBefore(ctx context.Context) (b paired.Binary, err error) {
	if c.Before == "" {
		return b, nil
	}
	return paired.Find(ctx, c.Before, "sluice")
}

// noteBefore records in the run which builds are compared.
func (s *stage) noteBefore(run *results.Run) error {
	if s.Before == "" {
		return nil
	}
	note := "before: " + s.before.Version
	same, err := paired.Same(s.before.Path, s.Sluice)
	if err != nil {
		return err
	}
	if same {
		note += ", the same file as now: only noise is measured"
	}
	fmt.Fprintln(s.Progress, note)
	run.Machine.Notes += "; " + note
	return nil
}

// unpaired reports whether a build's samples would have no samples of the other build beside them,
// because the other build failed.
func (c *comparison) unpaired(f *figures) bool {
	if c.Before == "" || f.kind.name != ours && f.kind.name != paired.Before {
		return false
	}
	return slices.ContainsFunc(c.systems, func(o *figures) bool {
		return o.failed != nil && (o.kind.name == ours || o.kind.name == paired.Before)
	})
}

// bothBuilds is one figure of both builds, a sample per round.
type bothBuilds struct {
	experiment, of, better string
	format                 string // of a median multiplied by
	by                     float64
	now, then              []float64
	param, value           string // a condition of its own; or empty
	remark                 string
}

// pairs returns the figures that both builds have.
func (c *comparison) pairs() (list []bothBuilds) {
	own, old := c.named(ours), c.named(paired.Before)
	if own == nil || old == nil {
		return nil
	}
	rate := func(of string, now, then []float64) bothBuilds {
		return bothBuilds{experiment: "throughput", of: of, better: "higher", format: "%.3f Mpps", by: 1e-6, now: now,
			then: then}
	}
	cpu := func(of string, now, then []float64) bothBuilds {
		return bothBuilds{experiment: "cpu", of: of, better: "lower", format: "%.0f ns", by: 1, now: now, then: then}
	}
	limited := ""
	if n := own.limited + old.limited; n > 0 {
		limited = fmt.Sprintf("%d of %d rates are the generator's limit", n, len(own.noDrop)+len(old.noDrop))
	}
	noDrop := rate("no_drop_rates", own.noDrop, old.noDrop)
	noDrop.remark = limited
	list = []bothBuilds{
		rate("rates", own.rate, old.rate), noDrop,
		cpu("cpu_per_packet at the highest rate", own.cpu, old.cpu), cpu("cpu_per_packet, both at one rate",
			own.cpuSame, old.cpuSame),
	}
	delays := func(param, value string, now, then map[string][]float64) {
		for _, p := range centralPercentiles {
			list = append(list, bothBuilds{"latency", c.way() + ", " + p, "lower", "%.1f us", 1, now[p], then[p], param,
				value, ""})
		}
	}
	list = append(list, c.bulkPairs(own, old)...)
	for _, load := range loads {
		if l, o := own.latency[load], old.latency[load]; l != nil && o != nil {
			delays("load", strconv.Itoa(load), l.percentiles, o.percentiles)
		}
	}
	for _, at := range c.rates {
		if a, o := own.at[at], old.at[at]; a != nil && o != nil {
			value := strconv.FormatFloat(at, 'f', -1, 64)
			x := cpu("cpu_per_packet", a.cpu, o.cpu)
			x.param, x.value = "rate", value
			list = append(list, x)
			delays("rate", value, a.percentiles, o.percentiles)
		}
	}
	return slices.DeleteFunc(list, func(b bothBuilds) bool { return len(ratios(b.now, b.then)) == 0 })
}

// beforePoints are the ratios now/before of equal rounds, with their verdicts.
func (c *comparison) beforePoints() (list []results.Point) {
	for _, b := range c.pairs() {
		p := c.point(b.experiment, c.named(ours), "ratio of "+b.of, "ratio", b.better, ratios(b.now, b.then))
		p.Params["against"], p.Remark = paired.Before, b.remark
		if b.param != "" {
			p.Params[b.param] = b.value
		}
		paired.SetVerdict(&p)
		list = append(list, p)
	}
	return list
}

// centralPercentiles are the percentiles by which builds are compared: on a shared machine the
// scheduler determines p99.9 and max.
var centralPercentiles = []string{"p50", "p99"}

// named finds a system of the comparison, measured or not; nil if there is none.
func (c *comparison) named(name string) *figures {
	for _, f := range c.systems {
		if f.kind.name == name {
			return f
		}
	}
	return nil
}

// beforeRows are the two builds as rows of a table.
func (c *comparison) beforeRows() (rows []paired.Row) {
	points := c.beforePoints()
	for i, b := range c.pairs() {
		what := b.of
		if b.param != "" {
			what += fmt.Sprintf(", %s %s", b.param, b.value)
		}
		if len(c.Services) > 1 {
			what = fmt.Sprintf("%d Services: %s", c.services, what)
		}
		rows = append(rows, paired.Row{What: what, Before: fmt.Sprintf(b.format, b.by*median(b.then)),
			Now: fmt.Sprintf(b.format, b.by*median(b.now)), Ratio: &points[i]})
	}
	return rows
}

// printBefore writes the table of the two builds, if there are two.
func (c *comparison) printBefore(out io.Writer) error {
	if c.Before == "" {
		return nil
	}
	fmt.Fprintln(out)
	return paired.Print(out, c.beforeRows())
}
