package report

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// figure holds lines against a varied condition, before drawing. The figures follow from the points
// alone: a new experiment needs no code here.
type figure struct {
	Name   string // of its files
	Title  string
	X, Y   string   // labels of the axes
	Target *float64 // drawn as a line, if all points have the same
	Series []series
}

// series is one line.
type series struct {
	Name  string
	Pairs [][2]float64
	// Style is the number of the colour, dashes and marks: the same name has the same style in all
	// plots.
	Style int
}

// varied are the possible conditions on a plot's x axis; the first that varies is used.
var varied = []struct{ param, label string }{
	{"services", "Services configured"},
	{"flows", "Flows, chosen uniformly at random"},
	{"load", "Offered load, % of the most"},
	{"connections/s", "Connections a second"},
	{"workers", "Workers"},
	{"rate", "Offered packets per second"},
	{"queues", "Receive queues"},
}

// variants are conditions shown as lines of one plot, not as plots of their own, because readers
// compare them.
var variants = []string{"rps", "flows_mode", "variant", "direction"}

// group holds the points that share a plot.
type group struct {
	key    string
	points []*results.Point
}

// figures returns the figures of the points, in a stable order.
func figures(runs []*results.Run) []figure {
	points := latest(runs)
	curves := make(map[string]bool) // experiments whose loads are distributions
	for _, p := range points {
		curves[p.Experiment] = curves[p.Experiment] || len(p.Curve) > 1
	}
	var list []figure
	drawn := make(map[*results.Point]bool)
	for _, x := range varied {
		for _, g := range groups(points, func(p *results.Point) (string, bool) {
			_, numeric := number(p.Params[x.param])
			return plotKey(p, x.param), numeric && p.Unit != "ratio" && !drawn[p] && (x.param != "load" ||
				!curves[p.Experiment])
		}) {
			if f, ok := sweepOf(g, x.param, x.label); ok {
				list = append(list, f)
				for _, p := range g.points {
					drawn[p] = true
				}
			}
		}
	}
	names, styles := make(map[string]int), make(map[string]int)
	for i := range list {
		for j := range list[i].Series {
			s := &list[i].Series[j]
			if _, known := styles[s.Name]; !known {
				styles[s.Name] = len(styles)
			}
			s.Style = styles[s.Name]
		}
		n := names[list[i].Name]
		names[list[i].Name]++
		if n > 0 {
			list[i].Name += fmt.Sprintf("-%d", n+1)
		}
	}
	return list
}

// latest returns the points of all runs; of points with equal keys, the newest run's.
func latest(runs []*results.Run) (points []*results.Point) {
	at := make(map[string]int)
	for _, r := range runs {
		for i := range r.Points {
			p := &r.Points[i]
			if n, known := at[p.Key()]; known {
				points[n] = p
				continue
			}
			at[p.Key()] = len(points)
			points = append(points, p)
		}
	}
	return points
}

// plotKey is the common key of points of one plot: everything except the system, the variants and
// without.
func plotKey(p *results.Point, without ...string) string {
	return strings.Join([]string{p.Experiment, p.Metric, p.Unit, p.Conditions(append(without, variants...)...)}, "|")
}

func groups(points []*results.Point, of func(*results.Point) (key string, in bool)) (list []group) {
	at := make(map[string]int)
	for _, p := range points {
		key, in := of(p)
		if !in || len(p.Samples) == 0 {
			continue
		}
		n, known := at[key]
		if !known {
			n, at[key] = len(list), len(list)
			list = append(list, group{key: key})
		}
		list[n].points = append(list[n].points, p)
	}
	return list
}

// seriesName is the system's name with its variants.
func seriesName(p *results.Point) string {
	name := p.System
	for _, v := range variants {
		if value := p.Params[v]; value != "" {
			name += ", " + v + " " + value
		}
	}
	return name
}

func (g group) figure(without ...string) figure {
	p := g.points[0]
	title := p.Metric
	if !strings.HasPrefix(p.Metric, p.Experiment) {
		title = p.Experiment + ": " + title
	}
	f := figure{Title: sentence(words(title)), Name: fileName(p.Experiment + "-" + p.Metric)}
	if c := conditions(p, append(without, variants...)...); c != "" {
		f.Title += " (" + c + ")"
	}
	f.Target = p.Target
	for _, q := range g.points {
		if q.Target == nil || p.Target == nil || *q.Target != *p.Target {
			f.Target = nil
		}
	}
	return f
}

func sweepOf(g group, param, label string) (figure, bool) {
	f := g.figure(param)
	f.X, f.Y = label, axis(g.points[0])
	f.Name += "-by-" + fileName(param)
	lines := make(map[string]int)
	wide := false
	for _, p := range g.points {
		name := seriesName(p)
		n, known := lines[name]
		if !known {
			n, lines[name] = len(f.Series), len(f.Series)
			f.Series = append(f.Series, series{Name: name})
		}
		x, _ := number(p.Params[param])
		f.Series[n].Pairs = append(f.Series[n].Pairs, [2]float64{x, p.Median()})
		wide = wide || len(f.Series[n].Pairs) > 1
	}
	for _, s := range f.Series {
		slices.SortFunc(s.Pairs, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	}
	return f, wide
}

func axis(p *results.Point) string {
	name := p.Metric
	if per, is := strings.CutPrefix(name, p.Unit+"_per_"); is {
		name = "time_per_" + per // not "ns per packet, ns"
	}
	return sentence(words(name)) + ", " + p.Unit
}

// words is a metric's name in words: "ns_per_packet" is "ns per packet".
func words(metric string) string {
	s := strings.ReplaceAll(metric, "_", " ")
	return strings.ReplaceAll(acronym.ReplaceAllStringFunc(s, strings.ToUpper), "CPUS", "CPUs")
}

var acronym = regexp.MustCompile(`\bcpus?\b`)

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// fileName keeps the characters that any file system and URL accepts.
func fileName(s string) string {
	return strings.Trim(strings.Join(strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), "-"), "-")
}

// number reads "1000", "1k", "10M", "50%".
func number(s string) (float64, bool) {
	factor := 1.0
	switch {
	case strings.HasSuffix(s, "k"):
		s, factor = s[:len(s)-1], 1e3
	case strings.HasSuffix(s, "M"):
		s, factor = s[:len(s)-1], 1e6
	case strings.HasSuffix(s, "%"):
		s = strings.TrimSpace(s[:len(s)-1])
	}
	x, err := strconv.ParseFloat(s, 64)
	return x * factor, err == nil
}
