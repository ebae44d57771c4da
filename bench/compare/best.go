package compare

import (
	"slices"
	"strings"
)

// A system in the kernel is as fast as packets are steered to it, and which way is the fastest
// depends on the machine, the senders and the figure. So each way is measured, in the same rounds,
// and ratios are to the one that is best in the figure that the ratio is of.

// twins are the systems that are the same but for how packets are steered to them, as far as they
// have samples of a figure. One that failed stays out, unless all did: what it did before it failed
// is not how it does. With ways, only those steered in one of them.
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

// best is the twin whose median of a figure is best; nil if none has any.
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

// chosen names the best system, and the systems that it was compared with.
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

// kindHasTwins reports whether packets can be steered to a system.
func kindHasTwins(base string) bool {
	_, err := kindOf(base + rpsAll.suffix())
	return err == nil
}

// bases are the systems of the comparison, those that differ in steering alone once.
func (c *comparison) bases() (list []string) {
	for _, f := range c.systems {
		if base := f.kind.base(); !slices.Contains(list, base) {
			list = append(list, base)
		}
	}
	return list
}
