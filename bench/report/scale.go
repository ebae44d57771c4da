package report

import (
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
)

// given marks the values that were measured, and nothing between them.
type given []float64

// Ticks of a plot.
func (g given) Ticks(lowest, highest float64) (ticks []plot.Tick) {
	values := slices.Compact(slices.Sorted(slices.Values(g)))
	last := math.Inf(-1)
	for _, v := range values {
		t := plot.Tick{Value: v}
		// Marks nearer than a quarter of a decade have labels that overlap.
		if lowest <= 0 || last <= 0 || v/last > 1.8 {
			t.Label, last = short(v), v
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// amounts are a plot's usual marks, with thousands as k and M.
type amounts struct{}

// Ticks of a plot.
func (amounts) Ticks(lowest, highest float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(lowest, highest)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = short(ticks[i].Value)
		}
	}
	return ticks
}

// short is a round number as people say it: 100k, 1.5M.
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

// figureText is a value in three or four digits, which is what a median of a few
// samples is good for; whole numbers are whole.
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
