package report

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// headline is one of the ratios in README: of all matching points of an experiment, the worst for
// Sluice.
type headline struct {
	What, To   string // the compared systems
	Run        string
	System     string
	Experiment string
	Metric     string
	Params     map[string]string // conditions that select the point; "" means that it must not have the condition
}

// headlines are ratios of figures that were measured in turn in one run: to a program in C, to
// Sluice with fewer Services, and to each peer at its best, with Sluice's defaults.
var headlines = [...]headline{
	{
		"time per packet in user space, IPv4, 1,000,000 flows", "a C program that does the same work",
		"pipeline", "sluice", "pipeline", "ratio",
		map[string]string{
			"scenario": "steady", "family": "ipv4", "headers": "cold", "packets": "both", "flows": "1000000",
			"to": "c-reference",
		},
	},
	{
		"packets per second, one way", "kube-proxy, nftables, at its best",
		"compare", "sluice", "throughput", "ratio of rates",
		map[string]string{"against": "kube-proxy-nftables"},
	},
	{
		"the same", "NAT by an XDP program",
		"compare", "sluice", "throughput", "ratio of rates",
		map[string]string{"against": "xdp-nat"},
	},
	{
		"p99 latency", "nftables with RPS",
		"latency-at", "sluice", "latency", "ratio of one-way, p99",
		map[string]string{"against": "nftables with RPS"},
	},
	{
		"the same, p99.9", "nftables with RPS",
		"latency-at", "sluice", "latency", "ratio of one-way, p99.9",
		map[string]string{"against": "nftables with RPS"},
	},
	{
		"time per packet in user space, 10,000 Services", "the same with one Service",
		"pipeline", "sluice", "pipeline", "ratio",
		map[string]string{"scenario": "services", "services": "10000", "flows": "1000000", "to": "1", "backends": ""},
	},
}

// headlineRow is a ratio, with a figure for each generation.
type headlineRow struct {
	what, to, bound, run string
	figures              []string
}

// headlinesOf finds the headlines among the runs. The first generation must have each.
func headlinesOf(gens []generation) (list []headlineRow, err error) {
	for _, h := range headlines {
		row := headlineRow{what: h.What, to: h.To, run: h.Run}
		for i, g := range gens {
			var found []*results.Point
			for _, r := range named(g.runs, h.Run) {
				for i := range r.Points {
					if h.is(&r.Points[i]) {
						found = append(found, &r.Points[i])
					}
				}
			}
			p := worst(found)
			figure := notMeasured
			switch {
			case p != nil:
				row.bound, figure = bound(p)+figureText(*p.Target), figureText(p.Median())
				if verdict(p) == missed {
					figure += ", **missed**"
				}
			case i == 0:
				return nil, fmt.Errorf("%s, compared with %s: of %d figures of experiment %s none has a bound, and "+
					"README needs one", h.What, h.To, len(found), h.Run)
			}
			row.figures = append(row.figures, figure)
		}
		list = append(list, row)
	}
	return list, nil
}

// worst is the point farthest beyond its bound, or nearest to it; nil if no point was measured and
// has a bound.
func worst(points []*results.Point) (least *results.Point) {
	for _, p := range points {
		if len(p.Samples) == 0 || p.Target == nil {
			continue
		}
		if least == nil || (p.Better == "lower") == (p.Median() > least.Median()) {
			least = p
		}
	}
	return least
}

func (h *headline) is(p *results.Point) bool {
	if p.Experiment != h.Experiment || p.Metric != h.Metric || p.System != h.System {
		return false
	}
	for name, value := range h.Params {
		if p.Params[name] != value {
			return false
		}
	}
	return true
}

// writeHeadlines writes a table whose rows link to the experiments of file.
func writeHeadlines(b *strings.Builder, gens []generation, list []headlineRow, file string) {
	fmt.Fprint(b, "| Sluice's | compared with | bound |")
	for _, g := range gens {
		fmt.Fprintf(b, " %s |", escape(g.title))
	}
	fmt.Fprintf(b, " experiment |\n| --- | --- | --- |%s --- |\n", strings.Repeat(" --- |", len(gens)))
	for _, l := range list {
		fmt.Fprintf(b, "| %s | %s | %s | %s | [%s](%s#%s) |\n",
			escape(l.what), escape(l.to), l.bound, strings.Join(l.figures, " | "), l.run, file, l.run)
	}
}

// writeGrowth writes the values at the ends of each line of a sweep.
func writeGrowth(b *strings.Builder, f *figure) {
	fmt.Fprintf(b, "| %s | at | figure | at | figure | growth |\n", escape(f.Y))
	fmt.Fprint(b, "| --- | --- | --- | --- | --- | --- |\n")
	for _, s := range f.Series {
		if len(s.Pairs) < 2 || s.Pairs[0][1] == 0 {
			continue
		}
		first, last := s.Pairs[0], s.Pairs[len(s.Pairs)-1]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s times |\n", escape(s.Name), short(first[0]), figureText(first[1]),
			short(last[0]), figureText(last[1]), figureText(last[1]/first[1]))
	}
}
