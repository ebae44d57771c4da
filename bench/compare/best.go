package compare

import (
	"slices"
	"strings"
)

// The speed of a system in the kernel depends on how packets are steered to it (RPS), and the
// fastest variant depends on the machine, the senders and the figure. So each variant is measured
// in the same rounds, and a ratio uses the variant that is best in the ratio's figure.

// twins returns the RPS variants of a system that have samples of a figure. A variant that failed
// is left out, unless all failed: its samples from before the failure do not represent it. With
// ways, only variants steered in one of these ways.
func (c *comparison) twins(base string, metric func(*figures) []float64, ways ...rps) (list []*figures) {
	for _, failed := range [...]bool{false, true} {
		for _, f := range c.systems {
			if len(ways) > 0 && !slices.Contains(ways, f.kind.rps) {
				continue
			}
			if f.kind.base() == base && len(known(metric(f))) > 0 && (f.failed != nil) == failed {
				list = append(list, f)
			}
		}
		if list != nil {
			return list
		}
	}
	return nil
}

// best returns the variant with the best median of a figure; nil if no variant has samples.
func (c *comparison) best(base string, metric func(*figures) []float64, better string, ways ...rps) *figures {
	list := c.twins(base, metric, ways...)
	if list == nil {
		return nil
	}
	return slices.MaxFunc(list, func(a, b *figures) int {
		x, y := median(metric(a)), median(metric(b))
		if better == "lower" {
			x, y = y, x
		}
		switch {
		case x > y:
			return 1
		case x < y:
			return -1
		}
		return 0
	})
}

// chosen names the best variant, and the variants among which it was chosen.
func (c *comparison) chosen(f *figures, metric func(*figures) []float64, ways ...rps) string {
	list := c.twins(f.kind.base(), metric, ways...)
	if len(list) < 2 {
		return "only " + f.kind.name + " was measured"
	}
	var names []string
	for _, t := range list {
		names = append(names, t.kind.name)
	}
	return f.kind.name + ", the best of " + strings.Join(names, ", ")
}

// kindHasTwins reports whether a system has RPS variants.
func kindHasTwins(base string) bool {
	_, err := kindOf(base + rpsAll.suffix())
	return err == nil
}

// bases are the systems of the comparison, each once regardless of its RPS variants.
func (c *comparison) bases() (list []string) {
	for _, f := range c.systems {
		if base := f.kind.base(); !slices.Contains(list, base) {
			list = append(list, base)
		}
	}
	return list
}
