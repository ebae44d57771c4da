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
	fmt.Fprintf(out,
		"\n%d Services, %d UDP flows, %d byte frames, %d queues, packets from CPUs %v; medians of %d rounds\n\n",
		c.services, c.Flows, c.Frame, c.Queues, c.SenderCPUs, c.Repeat)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(c.At) > 0 {
		c.printAt(w)
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

var rivals = []string{"l2fwd", "nftables-rps", "kube-proxy-nftables", "kube-proxy-nftables-rps"}

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
			noDrop = ">= " + noDrop // it is the generator's
		}
		fmt.Fprintf(w, "%s\t%.3f\t%s\t", f.kind.name, median(f.rate)/1e6, noDrop)
		for _, r := range rivals {
			if other := c.of(r); other != nil {
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
	fmt.Fprint(w,
		"one-way latency, us\tload\tp50\tp99\tp99.9\tmax\tp50 added to kernel's\tp50 of nftables\tsent\tarrived\t\n")
	nft, base := c.of("nftables"), c.of("kernel")
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
			for i, other := range [...]*figures{base, nft} {
				if other == nil || other.latency[load] == nil {
					fmt.Fprint(w, "-\t")
					continue
				}
				p50 := other.latency[load].percentiles["p50"]
				if i == 0 {
					fmt.Fprintf(w, "%+.0f\t", median(differences(l.percentiles["p50"], p50)))
					continue
				}
				fmt.Fprintf(w, "%.0f\t", median(p50))
			}
			fmt.Fprintf(w, "%.0f %%\t%.2f %%\t\n", 100*median(l.sent), 100*median(l.delivered))
		}
	}
}

func printTargets(w io.Writer, points []results.Point) {
	fmt.Fprint(w, "Sluice against\tof\tratio\ttarget\t\t\n")
	for _, p := range points {
		if p.Unit != "ratio" || p.Params["against"] == paired.Before {
			continue
		}
		if p.Target == nil {
			fmt.Fprintf(w, "%s\t%s\t%.2f\t-\t\t\n", p.Params["against"], p.Metric, p.Median())
			continue
		}
		sign, said := ">=", "met"
		if p.Better == "lower" {
			sign = "<="
		}
		if !p.Met() {
			said = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%s %.2f\t%s\t\n", p.Params["against"], p.Metric, p.Median(), sign, *p.Target,
			said)
	}
}

// printLosses says where packets were lost that were offered above a system's limit, and
// which systems failed.
func (c *comparison) printLosses(out io.Writer) error {
	fmt.Fprintf(out, "\nWhat was lost when packets came as fast as they could be sent, all rounds:\n")
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

// places divides what was lost: before the system (its interface's queue was full, or
// the socket's rings behind it), behind it (the receiver's queue was full), and the
// rest, which it received and did not send. A veth counts a packet that finds its peer's queue
// full at both ends.
func (f *figures) places() (before, in, behind uint64) {
	before, behind = f.lost[frontDev+" rx_dropped"], f.lost[backDev+" tx_dropped"]
	lost := f.sent - min(f.sent, f.received)
	return before, lost - min(lost, before+behind), behind
}

func orDash(list []float64, by float64, format string) string {
	if len(known(list)) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, median(list)*by)
}
