package report

import (
	"errors"
	"fmt"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sluice.dev/sluice/bench/results"
)

// tailExperiment is what bench/tail calls its points; those about the slowest packet of a trial
// have the packets slowest, and its parts as Curve: from and to, in us since it was stamped.
const tailExperiment, slowest = "tail", "slowest"

// apart divides points into those of the anatomy of the tail, which have figures of their own, and
// all others.
func apart(points []*results.Point) (tail, others []*results.Point) {
	for _, p := range points {
		if p.Experiment == tailExperiment {
			tail = append(tail, p)
		} else {
			others = append(others, p)
		}
	}
	return tail, others
}

// tailFigures are a stack of causes for each system and rate, for each group of packets, and the
// way of the slowest packet of each system and rate.
func tailFigures(points []*results.Point) (list []figure) {
	for _, g := range groups(points, func(p *results.Point) (string, bool) {
		return p.Conditions("rate"), p.Params["packets"] != slowest
	}) {
		list = append(list, stackOf(g))
	}
	for _, g := range groups(points, func(p *results.Point) (string, bool) {
		return p.System + p.Conditions(), p.Params["packets"] == slowest
	}) {
		list = append(list, wayOf(g))
	}
	return list
}

func stackOf(g group) figure {
	p := g.points[0]
	f := figure{Kind: stack, Y: "Mean of a packet, us", Name: fileName("tail-" + p.Params["packets"]),
		Title: fmt.Sprintf("Where packets %s waited (%s)", p.Params["packets"], conditions(p, "rate", "packets"))}
	for _, p := range g.points {
		name := p.System + ", " + perSecond(p.Params["rate"])
		bar := slices.Index(f.Bars, name)
		if bar < 0 {
			bar = len(f.Bars)
			f.Bars = append(f.Bars, name)
		}
		i := slices.IndexFunc(f.Series, func(s series) bool { return s.Name == p.Metric })
		if i < 0 {
			i = len(f.Series)
			f.Series = append(f.Series, series{Name: p.Metric, Style: i})
		}
		f.Series[i].Pairs = append(f.Series[i].Pairs, [2]float64{float64(bar), p.Median()})
	}
	return f
}

func wayOf(g group) figure {
	p := g.points[0]
	f := figure{Kind: way, X: "Since it was stamped, us",
		Name: fileName("tail-slowest-" + p.System + "-" + p.Params["rate"]),
		Title: fmt.Sprintf("The slowest packet of %s at %s (%s)", p.System, perSecond(p.Params["rate"]),
			conditions(p, "rate", "packets"))}
	for _, p := range g.points {
		f.Series = append(f.Series, series{Name: p.Metric, Pairs: p.Curve})
	}
	return f
}

// perSecond is a rate in packets per second as it is shown: "20k/s".
func perSecond(rate string) string {
	if x, ok := strings.CutSuffix(rate, "000"); ok {
		return x + "k/s"
	}
	return rate + "/s"
}

// stackColour is that of a cause, by its place: beyond the palette a darker one.
func stackColour(i int) color.RGBA {
	c := palette[i%len(palette)]
	if i < len(palette) {
		return c
	}
	return color.RGBA{c.R / 2, c.G / 2, c.B / 2, 0xff}
}

// addStack draws one bar for each of Bars, of the series on top of each other.
func (f *figure) addStack(p *plot.Plot) error {
	var below *plotter.BarChart
	for i, s := range f.Series {
		values := make(plotter.Values, len(f.Bars))
		waited := false
		for _, xy := range s.Pairs {
			values[int(xy[0])] = xy[1]
			waited = waited || xy[1] > 0
		}
		if !waited {
			continue
		}
		bar, err := plotter.NewBarChart(values, 34)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		bar.Color, bar.LineStyle.Width = stackColour(i), 0
		if below != nil {
			bar.StackOn(below)
		}
		below = bar
		p.Add(bar)
		p.Legend.Add(s.Name, bar)
	}
	if below == nil {
		return errors.New("no packet waited")
	}
	p.X.Min, p.X.Max = -0.7, float64(len(f.Bars))-0.3
	f.nameBars(p, f.Bars)
	return nil
}

// addWay draws a line for each series, from top to bottom, and on it from each first to each second
// number of its pairs.
func (f *figure) addWay(p *plot.Plot) error {
	names := make([]string, len(f.Series))
	for i, s := range f.Series {
		row := float64(len(f.Series) - 1 - i)
		names[int(row)] = s.Name
		for _, part := range s.Pairs {
			line, err := plotter.NewLine(plotter.XYs{{X: part[0], Y: row}, {X: part[1], Y: row}})
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			line.Color, line.Width = palette[0], vg.Length(10)
			p.Add(line)
		}
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.7, float64(len(f.Series))-0.3
	return nil
}
