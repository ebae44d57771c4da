package workers

import (
	"strings"
	"testing"

	"sluice.dev/sluice/control/config"
)

// TestGoesFirst: a process goes before others where it takes no time from receiving packets.
func TestGoesFirst(t *testing.T) {
	for _, c := range []struct {
		name            string
		poll            bool
		arrive, workers []int
		want            bool
	}{
		{"not known yet", false, nil, []int{0, 1}, false},
		{"apart", false, []int{0}, []int{1, 1}, true},
		{"one is where packets arrive", false, []int{0}, []int{1, 0}, false},
		{"everywhere", false, []int{0, 1}, []int{0, 1}, false},
		{"on any CPU", false, []int{0}, []int{1, -1}, false},
		{"polls itself", true, nil, []int{0, 1}, true},
	} {
		first, why := goesFirst(whereabouts{c.poll, c.arrive, c.workers})
		if first != c.want || strings.HasPrefix(why, "before others") != c.want {
			t.Errorf("%s: %t, %q", c.name, first, why)
		}
	}
}

// TestNoTimeToSpare: a process whose workers have no time to spare does not go first, until they
// have a good part of it again.
func TestNoTimeToSpare(t *testing.T) {
	var p precedence
	apart, beside := whereabouts{arrive: []int{0}, workers: []int{1}}, whereabouts{arrive: []int{1}, workers: []int{1}}
	for i, c := range []struct {
		at   whereabouts
		busy float64
		want bool
	}{
		{apart, 0.8, false}, {apart, 0.5, true}, {apart, 0.8, true}, {apart, 0.9, false}, {apart, 0.8, false},
		{apart, 0.6, true}, {beside, 0.1, false}, {apart, 0.1, true},
	} {
		why := p.decide(c.at, c.busy)
		if p.first != c.want || strings.HasPrefix(why, "before others") != c.want {
			t.Errorf("%d: first is %t, %q; want %t", i, p.first, why, c.want)
		}
	}
}

// TestPrecedenceSaysWhyNot: a process that cannot go first says why, and changes nothing.
func TestPrecedenceSaysWhyNot(t *testing.T) {
	var p precedence
	p.open(config.Default()) // a test does not lead its session
	if l := p.condition(); len(l) != 1 || !strings.Contains(l[0].Detail, "setsid") || p.session != nil {
		t.Errorf("conditions %+v", l)
	}
	p.follow(nil, whereabouts{arrive: []int{0}, workers: []int{1}}, 0) // nothing to change
}
