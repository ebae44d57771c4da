package gaps

import (
	"fmt"
	"strconv"
	"text/tabwriter"

	"sluice.dev/sluice/bench/results"
)

// figure is one column: what a window says.
type figure struct {
	metric, unit string
	of           func(*Window) float64
}

var figures = []figure{
	{"gaps_over_1ms", "per 10 s", func(w *Window) float64 { return w.per10s(w.All.Over1ms) }},
	{"gaps_over_100us", "per 10 s", func(w *Window) float64 { return w.per10s(w.All.Over100us) }},
	{"gap_max", "ms", func(w *Window) float64 { return float64(w.Max) / 1e6 }},
	{"time_lost", "%", (*Window).lost},
	{"handed_over_over_1ms", "per 10 s", func(w *Window) float64 { return w.per10s(w.HandedOver.Over1ms) }},
	{"handed_over", "per 10 s", func(w *Window) float64 { return w.per10s(w.HandedOver.Gaps) }},
	{"handed_over_mean", "us",
		func(w *Window) float64 { return float64(w.HandedOver.Lost) / 1e3 / float64(max(1, w.HandedOver.Gaps)) }},
	{"preempted_over_1ms", "per 10 s", func(w *Window) float64 { return w.per10s(w.Preempted.Over1ms) }},
	{"preempted", "per 10 s", func(w *Window) float64 { return w.per10s(w.Preempted.Gaps) }},
	{"in_place_over_1ms", "per 10 s", func(w *Window) float64 { return w.per10s(w.InPlace.Over1ms) }},
}

var ofGo = []figure{
	{"moves", "per 10 s", func(w *Window) float64 { return w.per10s(w.Moves) }},
	{"elsewhere", "per 10 s", func(w *Window) float64 { return w.per10s(w.Elsewhere) }},
	{"collections", "per 10 s", func(w *Window) float64 { return w.per10s(w.Collections) }},
	{"allocated", "MB/s", func(w *Window) float64 { return float64(w.Allocated) * 1e3 / float64(w.Nanos) }},
	{"live_heap", "MB", func(w *Window) float64 { return float64(w.Live) / 1e6 }},
	{"published", "per s", func(w *Window) float64 { return float64(w.Published) * 1e9 / float64(w.Nanos) }},
}

func (c *Config) params(variant string) map[string]string {
	return map[string]string{
		"services": strconv.Itoa(c.Services), "endpoints": strconv.Itoa(c.Endpoints), "updates/s": strconv.Itoa(c.Rate),
		"window": c.Window.String(), "variant": variant,
	}
}

// points are a variant's, those of the floor beside it, and what is held: their difference.
func (c *Config) points(variant string, rounds []round) (list []results.Point) {
	add := func(system string, f figure, of func(*round) float64) *results.Point {
		p := results.Point{
			Experiment: "gaps", System: system, Params: c.params(variant), Metric: f.metric, Unit: f.unit,
			Better: "lower",
		}
		for i := range rounds {
			p.Samples = append(p.Samples, of(&rounds[i]))
		}
		list = append(list, p)
		return &list[len(list)-1]
	}
	for _, f := range figures {
		add("c-loop", f, func(r *round) float64 { return f.of(&r.floor) })
		add("sluice", f, func(r *round) float64 { return f.of(&r.window) })
	}
	for _, f := range ofGo {
		add("sluice", f, func(r *round) float64 { return f.of(&r.window) })
	}
	held := figures[0]
	held.metric = "gaps_over_1ms_above_floor"
	target := float64(Target)
	p := add("sluice", held, func(r *round) float64 { return figures[0].of(&r.window) - figures[0].of(&r.floor) })
	if variant == "sluice" {
		p.Target = &target
		if floor := floorMedian(rounds); floor > target {
			p.Remark = fmt.Sprintf("not a quiet machine: the C loop alone had %.1f", floor)
		}
	}
	return list
}

// floorMedian is the median of the C loop's gaps of more than 1 ms in 10 s.
func floorMedian(rounds []round) float64 {
	var p results.Point
	for i := range rounds {
		p.Samples = append(p.Samples, figures[0].of(&rounds[i].floor))
	}
	return p.Median()
}

// print writes a table of medians, a row for each variant and one for the floor beside it.
func (c *Config) print(list []Variant, rounds [][]round) error {
	fmt.Fprintf(c.Out, "%d windows of %s each, medians. %d Services of %d endpoints, %d changes/s.\n"+
		"Gaps are counts per 10 s, those of more than 1 ms and of more than 0.1 ms; handed over, preempted and in "+
		"place are what those of more than 1 ms\n"+
		"were; handovers are of any length.\n",
		c.Windows, c.Window, c.Services, c.Endpoints, c.Rate)
	w := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w,
		"\t>1ms\t>0.1ms\tmax ms\tlost %\thanded over\tpreempted\tin place\thandovers\tµs "+
			"each\tmoves\telsewhere\tGCs\tMB/s\theap MB\ttables/s\t>1ms above C\t")
	for i, v := range list {
		points := map[string]*results.Point{}
		all := c.points(v.Name, rounds[i])
		for k := range all {
			points[all[k].System+" "+all[k].Metric] = &all[k]
		}
		median := func(key string) string { return strconv.FormatFloat(points[key].Median(), 'f', 1, 64) }
		for _, system := range []string{"c-loop", "sluice"} {
			name := map[string]string{"c-loop": "C", "sluice": v.Name}[system]
			fmt.Fprint(w, name)
			for _, m := range []string{
				"gaps_over_1ms", "gaps_over_100us", "gap_max", "time_lost", "handed_over_over_1ms",
				"preempted_over_1ms", "in_place_over_1ms", "handed_over", "handed_over_mean",
			} {
				fmt.Fprint(w, "\t", median(system+" "+m))
			}
			if system == "c-loop" {
				fmt.Fprintln(w, "\t\t\t\t\t\t\t\t")
				continue
			}
			for _, m := range []string{
				"moves", "elsewhere", "collections", "allocated", "live_heap", "published", "gaps_over_1ms_above_floor",
			} {
				fmt.Fprint(w, "\t", median(system+" "+m))
			}
			fmt.Fprintln(w, "\t")
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "Target: at most %d above C for variant sluice.\n", Target)
	for i, v := range list {
		if floor := floorMedian(rounds[i]); floor > Target {
			fmt.Fprintf(c.Out,
				"The machine is not quiet: beside %s the C loop alone had %.1f gaps of more than 1 ms in 10 s. Above "+
					"so many, a few more do not show.\n", v.Name, floor)
		}
	}
	return nil
}
