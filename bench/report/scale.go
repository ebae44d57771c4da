package report

import (
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
)

// given draws ticks at the measured values only.
type given []float64

// Ticks implements plot.Ticker.
func (g given) Ticks(lowest, highest float64) (ticks []plot.Tick) {
	values := slices.Compact(slices.Sorted(slices.Values(g)))
	last := math.Inf(-1)
	for _, v := range values {
		t := plot.Tick{Value: v}
		// Labels of ticks nearer than a quarter of a decade would overlap.
		if lowest <= 0 || last <= 0 || v/last > 1.8 {
			t.Label, last = short(v), v
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// amounts draws the usual ticks, with k and M for thousands and millions.
type amounts struct{}

// Ticks implements plot.Ticker.
func (amounts) Ticks(lowest, highest float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(lowest, highest)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = short(ticks[i].Value)
		}
	}
	return ticks
}

// short writes a round number with a unit: 100k, 1.5M.
func short(v float64) string {
	for _, u := range [...]struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= u.of && (u.name != "k" || math.Mod(v, 1000) == 0) {
			return strconv.FormatFloat(v/u.of, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

// figureText writes a value with three or four digits, the precision of a median of a few samples;
// whole numbers stay whole.
func figureText(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + "M"
	case a >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + "k"
	case v == math.Trunc(v), a >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
