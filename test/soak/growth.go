package soak

import (
	"fmt"
	"slices"
)

// bound is how much of a resource may be added from the first samples of a half to its last ones.
type bound struct {
	name     string
	unit     float64 // divides the printed value
	relative float64 // of the first samples
	absolute float64
	of       func(*sample) float64
}

// The resources that a process holds while it works vary: connections of the status socket,
// goroutines of requests, garbage that is not collected yet. Files and kernel objects that it
// leaves on the node do not.
var bounds = []bound{
	{"memory of its own (RssAnon), MiB", 1 << 20, 0.05, 4 << 20,
		func(s *sample) float64 { return float64(s.anonymous) }},
	{"file descriptors", 1, 0, 4, func(s *sample) float64 { return float64(s.descriptors) }},
	{"goroutines", 1, 0.05, 4, func(s *sample) float64 { return float64(s.goroutines) }},
	{"threads", 1, 0, 4, func(s *sample) float64 { return float64(s.threads) }},
	{"pins", 1, 0, 0, func(s *sample) float64 { return float64(s.pins) }},
	{"files in stateDir", 1, 0, 0, func(s *sample) float64 { return float64(s.files) }},
	{"interfaces of the gateway", 1, 0, 0, func(s *sample) float64 { return float64(s.interfaces) }},
}

// growth is one resource in one half.
type growth struct {
	*bound
	first, last, most float64
}

// fewest samples of a half for a verdict: below, its quarters say nothing.
const fewest = 8

// growthOf compares the second quarter of samples with the last: the first one is for warming up.
// It returns false where there are too few.
func growthOf(b *bound, samples []sample) (growth, bool) {
	if len(samples) < fewest {
		return growth{}, false
	}
	values := make([]float64, len(samples))
	for i := range samples {
		values[i] = b.of(&samples[i])
	}
	n := len(values) / 4
	return growth{bound: b, first: median(values[n : 2*n]), last: median(values[len(values)-n:]),
		most: slices.Max(values)}, true
}

// err is nil unless the resource has grown beyond its bound.
func (g *growth) err() error {
	if g.last <= g.first*(1+g.relative)+g.absolute {
		return nil
	}
	return fmt.Errorf("%s grew from %.1f to %.1f", g.name, g.first/g.unit, g.last/g.unit)
}

// median of values, which it leaves as they are; the larger of two in the middle.
func median(values []float64) float64 { s := slices.Sorted(slices.Values(values)); return s[len(s)/2] }
