package compare

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

// print writes the tables of a comparison.
func (c *comparison) print(out io.Writer, points []results.Point) error {
	what := fmt.Sprintf("%d UDP flows, %s, %d byte frames, %v", c.Flows, c.way(), c.Frame, c.Senders)
	if c.Bulk {
		what = fmt.Sprintf("TCP, MTU %d, interfaces with %d queues", bulkMTU, c.Queues)
	}
	fmt.Fprintf(out, "\n%d Services, %s; medians of %d rounds\n\n", c.services, what, c.Repeat)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if c.Bulk {
		c.printBulk(w)
		fmt.Fprintln(w)
		printTargets(w, points)
		return errors.Join(w.Flush(), c.printBefore(out), c.printFailures(out))
	}
	if c.atRates() {
		c.printAt(w)
		fmt.Fprintln(w)
		printTargets(w, points)
		return errors.Join(w.Flush(), c.printBefore(out), c.printFailures(out))
	}
	c.printRates(w)
	if !c.Quick && !c.Rates {
		fmt.Fprintln(w)
		c.printLatency(w)
	}
	fmt.Fprintln(w)
	printTargets(w, points)
	if err := w.Flush(); err != nil {
		return err
	}
	return errors.Join(c.printBefore(out), c.printLosses(out))
}

// rivals are the systems for which tables have a column of ratios, each at its best.
var rivals = []string{"l2fwd", "xdp-nat", "nftables", "kube-proxy-nftables"}

func (c *comparison) printRates(w io.Writer) {
	fmt.Fprint(w, "system\tMpps\tno-drop Mpps\t")
	for _, r := range rivals {
		fmt.Fprintf(w, "x %s\t", r)
	}
	fmt.Fprintf(w, "ns CPU/packet\tall at one rate\tuser\tkernel\tinterrupts\tarrived\t\n")
	for _, f := range c.systems {
		if len(f.rate) == 0 {
			continue
		}
		noDrop := orDash(f.noDrop, 1e-6, "%.3f")
		if 2*f.limited > len(f.noDrop) {
			noDrop = ">= " + noDrop // the generator's limit
		}
		fmt.Fprintf(w, "%s\t%.3f\t%s\t", f.kind.name, median(f.rate)/1e6, noDrop)
		for _, r := range rivals {
			if other := c.best(r, rateOf, "higher"); other != nil {
				fmt.Fprintf(w, "%.2f\t", median(ratios(f.rate, other.rate)))
				continue
			}
			fmt.Fprint(w, "-\t")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", orDash(f.cpu, 1, "%.0f"), orDash(f.cpuSame, 1, "%.0f"),
			orDash(f.user, 1, "%.0f"),
			orDash(f.system, 1, "%.0f"), orDash(f.interrupts, 1, "%.0f"), orDash(f.delivered, 100, "%.2f %%"))
	}
}

func (c *comparison) printLatency(w io.Writer) {
	fmt.Fprint(w, c.way(),
		" latency, us\tload\tp50\tp99\tp99.9\tmax\tp50 added to kernel's\tbest p50 of nftables\tsent\t"+
			"arrived\t\n")
	for _, f := range c.systems {
		for _, load := range loads {
			l := f.latency[load]
			if l == nil {
				continue
			}
			fmt.Fprintf(w, "%s\t%d %%\t", f.kind.name, load)
			for _, p := range percentiles {
				fmt.Fprintf(w, "%.0f\t", median(l.percentiles[p.name]))
			}
			added, nftables := "-", "-"
			if base := c.of("kernel"); base != nil && base.latency[load] != nil {
				added = fmt.Sprintf("%+.0f", median(differences(l.percentiles["p50"],
					base.latency[load].percentiles["p50"])))
			}
			if best := c.best("nftables", p50At(load), "lower"); best != nil {
				nftables = fmt.Sprintf("%.0f", median(p50At(load)(best)))
			}
			fmt.Fprintf(w, "%s\t%s\t%.0f %%\t%.2f %%\t\n", added, nftables, 100*median(l.sent),
				100*median(l.delivered))
		}
	}
}

// p50At is the median latency at a load.
func p50At(load int) func(*figures) []float64 {
	return func(f *figures) []float64 {
		if l := f.latency[load]; l != nil {
			return l.percentiles["p50"]
		}
		return nil
	}
}

func printTargets(w io.Writer, points []results.Point) {
	fmt.Fprint(w, "system\tagainst\tof\tratio\ttarget\t\t  chosen\n")
	for _, p := range points {
		if p.Unit != "ratio" || p.Params["against"] == paired.Before {
			continue
		}
		what := p.Metric
		if rate := p.Params["rate"]; rate != "" {
			what += " at " + rate
		}
		if streams := p.Params["streams"]; streams != "" {
			what += ", " + streams + " " + p.Params["way"]
		}
		if p.Target == nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t-\t\t  %s\n", p.System, p.Params["against"], what, p.Median(), p.Remark)
			continue
		}
		sign, said := ">=", "met"
		if p.Better == "lower" {
			sign = "<="
		}
		if !p.Met() {
			said = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%s %.2f\t%s\t  %s\n", p.System, p.Params["against"], what, p.Median(), sign,
			*p.Target, said, p.Remark)
	}
}

// printLosses shows where packets were lost above a system's limit, and which systems failed.
func (c *comparison) printLosses(out io.Writer) error {
	fmt.Fprintf(out, "\nLost packets while the generator sent as fast as it could, all rounds:\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w,
		"system\toffered Mpps\tlost\tbefore it\tin it\tbehind it\tlate or foreign\tflows checked\t  counters that "+
			"are not 0 (some count the same packets)\n")
	for _, f := range c.systems {
		if f.sent == 0 {
			continue
		}
		before, in, behind := f.places()
		fmt.Fprintf(w, "%s\t%.3f\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%d\t%d of %d\t  %s\n", f.kind.name,
			median(f.offered)/1e6,
			f.percent(f.sent-min(f.sent, f.received)), f.percent(before), f.percent(in), f.percent(behind), f.late,
			slices.Min(f.flows), c.Flows, f.lost)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return c.printFailures(out)
}

func (c *comparison) printFailures(out io.Writer) error {
	for _, f := range c.systems {
		if f.failed != nil {
			fmt.Fprintf(out, "FAILED: %v\n", f.failed)
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}

func (f *figures) percent(n uint64) float64 { return 100 * float64(n) / float64(f.sent) }

// places divides the losses: before the system (its interface's queue was full, or the socket's
// rings behind that), behind the system (the receiver's queue was full, or a queue on the way of
// the answers), and in the system, which received the rest and did not send it. If a packet finds
// the peer's queue full, a veth counts it at both ends.
func (f *figures) places() (before, in, behind uint64) {
	before = f.lost[frontDev+" rx_dropped"]
	behind = f.lost[backDev+" tx_dropped"] + f.lost[backDev+" rx_dropped"] + f.lost[frontDev+" tx_dropped"]
	lost := f.sent - min(f.sent, f.received)
	return before, lost - min(lost, before+behind), behind
}

func orDash(list []float64, by float64, format string) string {
	if len(known(list)) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, median(list)*by)
}
