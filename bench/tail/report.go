package tail

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/test/bed/stateless"
)

// sums are the times of a group's ways, by cause.
func (g *group) sums() (by [causes]uint64, all uint64) {
	for _, w := range g.ways {
		for _, p := range w.Parts {
			by[p.Cause] += p.To - p.From
			all += p.To - p.From
		}
	}
	return by, all
}

// detail is a cause with its detail, and its share of a group's packets.
type detail struct {
	cause          Cause
	text           string
	sum            uint64
	longest        uint64 // of one packet
	packets, chief int    // packets with this detail; packets for which it is the longest
}

// details are the details of a group, the longest first.
func (g *group) details() []detail {
	type key struct {
		cause Cause
		text  string
	}
	all := map[key]*detail{}
	for _, w := range g.ways {
		own := map[key]uint64{}
		for _, p := range w.Parts {
			own[key{p.Cause, p.Detail}] += p.To - p.From
		}
		var chief *detail
		var most uint64
		for k, n := range own {
			d := all[k]
			if d == nil {
				d = &detail{cause: k.cause, text: k.text}
				all[k] = d
			}
			d.sum += n
			d.longest = max(d.longest, n)
			d.packets++
			if n > most {
				chief, most = d, n
			}
		}
		if chief != nil {
			chief.chief++
		}
	}
	var list []detail
	for _, d := range all {
		list = append(list, *d)
	}
	slices.SortFunc(list, func(a, b detail) int {
		if a.sum != b.sum {
			return byTook(b.sum, a.sum)
		}
		return strings.Compare(a.text, b.text)
	})
	return list
}

// print writes the tables of a trial.
func (a *anatomy) print(out io.Writer, worst int) {
	fmt.Fprintf(out, "\n%s, %.0f packets a second, %v\n", a.system, a.rate, a.senders)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "us\tp50\tp99\tp99.9\tmax\t")
	for _, h := range []struct {
		name string
		*stateless.Histogram
	}{{"not recorded", a.plain}, {"recorded", a.traced}} {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t\n", h.name, us(h.Percentile(50)), us(h.Percentile(99)),
			us(h.Percentile(99.9)), us(h.Max()))
	}
	_ = w.Flush()
	if a.lost > 0 {
		fmt.Fprintf(out, "%d events had no room: causes below may be unknown for that reason\n", a.lost)
	}
	fmt.Fprintln(w, "\nshare of the time of packets\tpackets\tus at least\t"+strings.Join(causeNames(), "\t")+"\t")
	for i := range a.groups {
		g := &a.groups[i]
		by, all := g.sums()
		fmt.Fprintf(w, "%s\t%d\t%.0f\t", groupName(g), g.packets, us(g.from))
		for _, n := range by {
			fmt.Fprintf(w, "%s\t", percent(n, all))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	g := &a.groups[len(a.groups)-1]
	_, all := g.sums()
	fmt.Fprintf(w, "\n%s: waited\tof the time\tpackets\tof them chiefly\tlongest us\t\n", groupName(g))
	for i, d := range g.details() {
		const most = 12
		if i == most {
			break
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.0f\t\n", d.name(), percent(d.sum, all), d.packets, d.chief,
			us(time.Duration(d.longest)))
	}
	_ = w.Flush()
	for _, way := range g.ways[:min(worst, len(g.ways))] {
		way.print(out)
	}
}

func (d *detail) name() string { return label(d.cause, d.text) }

func label(c Cause, text string) string {
	if text == "" {
		return c.String()
	}
	return c.String() + ": " + text
}

func groupName(g *group) string {
	if g.name == "p50" {
		return "about p50"
	}
	return "beyond " + g.name
}

func causeNames() (names []string) {
	for c := range causes {
		names = append(names, c.String())
	}
	return names
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func percent(n, of uint64) string {
	if of == 0 || n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(of))
}

// print writes the path of a packet.
func (w *Way) print(out io.Writer) {
	fmt.Fprintf(out, "\na packet that took %.0f us, flow %d, received on CPU %d:\n", us(time.Duration(w.Took())),
		w.Flow, w.CPU)
	for _, p := range w.Parts {
		text := label(p.Cause, p.Detail)
		if p.Calls != "" {
			text += " (system calls: " + p.Calls + ")"
		}
		fmt.Fprintf(out, "  %8.1f us  for %7.1f  %s\n", us(time.Duration(p.From-w.Sent)),
			us(time.Duration(p.To-p.From)), text)
	}
}

// points are the shares in the common result format.
func (a *anatomy) points(c *compare.Config) (list []results.Point) {
	params := map[string]string{
		"rate": strconv.FormatFloat(a.rate, 'f', -1, 64), "queues": strconv.Itoa(a.senders.Queues),
		"sender_cpus": wording.Numbers(a.senders.CPUs, ","), "flows": strconv.Itoa(c.Flows),
		"services": strconv.Itoa(c.Services[0]),
	}
	for i := range a.groups {
		g := &a.groups[i]
		by, _ := g.sums()
		of := maps.Clone(params)
		of["packets"] = groupName(g)
		for cause, n := range by {
			list = append(list, results.Point{
				Experiment: "tail", System: a.system, Params: of, Metric: Cause(cause).String(), Unit: "us",
				Better: "lower", Samples: []float64{us(time.Duration(n)) / float64(max(g.packets, 1))},
			})
		}
	}
	return list
}

// merge adds the samples of later trials to the points with the same conditions.
func merge(list, more []results.Point) []results.Point {
	for _, p := range more {
		i := slices.IndexFunc(list, func(have results.Point) bool { return have.Key() == p.Key() })
		if i < 0 {
			list = append(list, p)
			continue
		}
		list[i].Samples = append(list[i].Samples, p.Samples...)
	}
	return list
}
