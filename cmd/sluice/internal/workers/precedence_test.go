package workers

import (
	"strings"
	"testing"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/internal/autogroup"
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

// steps are looks at a process one after another, and what it goes before after each.
type steps []struct {
	at   whereabouts
	l    load
	want standing
}

func (s steps) check(t *testing.T, p *precedence) {
	t.Helper()
	for i, c := range s {
		why := p.decide(c.at, c.l)
		if p.now != c.want || strings.HasPrefix(why, "before others") != (c.want != behind) {
			t.Errorf("%d: it goes before others in the way %d, %q; want %d", i, p.now, why, c.want)
		}
	}
}

var (
	apart  = whereabouts{arrive: []int{0}, workers: []int{1}}
	beside = whereabouts{arrive: []int{1}, workers: []int{1}}
)

// TestNoTimeToSpare: a process whose workers have no time to spare does not go first, until they
// have a good part of it again.
func TestNoTimeToSpare(t *testing.T) {
	steps{
		{apart, load{busy: 0.8}, behind}, {apart, load{busy: 0.5}, first}, {apart, load{busy: 0.8}, first},
		{apart, load{busy: 0.9}, behind}, {apart, load{busy: 0.8}, behind}, {apart, load{busy: 0.6}, first},
		{beside, load{busy: 0.1}, behind}, {apart, load{busy: 0.1}, first},
	}.check(t, &precedence{session: new(autogroup.Session)})
}

// TestOthersWantTheCPU: workers that look for packets are real-time threads with breaks while
// somebody wants their CPU, which shows in what others get of it; where that is refused they leave
// others more. After ten seconds it is seen whether somebody still does.
func TestOthersWantTheCPU(t *testing.T) {
	for _, c := range []struct {
		name            string
		p               *precedence
		little, enough  float64 // of a CPU that others get
		usually, wanted standing
	}{
		{"in a session", &precedence{session: new(autogroup.Session)}, 0.005, 0.011, first, withBreaks},
		{"real time refused", &precedence{session: new(autogroup.Session), refused: "; it is refused"}, 0.005, 0.011,
			first, moderate},
		{"without a session", &precedence{whyNot: "not before others"}, 0.02, 0.05, behind, withBreaks},
		{"without both", &precedence{whyNot: "not before others", refused: "; it is refused"}, 0.02, 0.05, behind,
			behind},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps{
				{apart, load{waited: c.enough}, c.usually}, {apart, load{waited: c.little}, c.usually},
				{apart, load{waited: 3 * c.little}, c.usually}, {apart, load{waited: c.little}, c.usually},
				{apart, load{waited: -1}, c.usually},
			}.check(t, c.p)
			looks := 0
			for ; c.p.now != c.wanted && looks < 10; looks++ {
				c.p.decide(apart, load{waited: c.enough})
			}
			steps{{apart, load{waited: c.enough}, c.wanted}, {apart, load{waited: -1}, c.wanted}}.check(t, c.p)
			if c.wanted == c.usually {
				return
			}
			for looks = 2; c.p.now == c.wanted && looks < 100; looks++ {
				c.p.decide(apart, load{})
			}
			if c.p.now != c.usually || looks != looksAgain {
				t.Errorf("after %d looks: %d, want %d after %d", looks, c.p.now, c.usually, looksAgain)
			}
		})
	}
}

// TestRealTime: workers that sleep are real-time threads while they sleep a good part of the time,
// where the kernel allows it. Not while nothing arrives: they would still be some when a burst
// begins.
func TestRealTime(t *testing.T) {
	p := &precedence{session: new(autogroup.Session), sleeps: true}
	steps{
		{apart, load{idle: true}, first}, {apart, load{used: 0.1}, atOnce},
		{apart, load{used: 0.8}, atOnce}, {apart, load{used: 0.9}, first}, {apart, load{used: 0.8}, first},
		{apart, load{used: 0.6}, atOnce}, {beside, load{used: 0.1}, behind}, {apart, load{used: 0.1}, atOnce},
		{apart, load{used: 1, busy: 0.9}, behind},
	}.check(t, p)
	p.refused = "; it is refused"
	steps{{apart, load{used: 0.1}, first}}.check(t, p)
	if why := p.decide(apart, load{}); !strings.HasSuffix(why, p.refused) {
		t.Errorf("it says %q", why)
	}
	// Without a session that can go first they are real-time threads or as others are.
	steps{{apart, load{used: 0.1}, atOnce}, {apart, load{used: 0.9}, behind}}.check(t,
		&precedence{whyNot: "not before others", sleeps: true})
}

// TestPrecedenceSaysWhyNot: a process that cannot go first says why, and changes nothing.
func TestPrecedenceSaysWhyNot(t *testing.T) {
	var p precedence
	p.open(config.Default()) // a test does not lead its session
	p.say(p.decide(apart, load{}))
	if l := p.condition(); len(l) != 1 || !strings.Contains(l[0].Detail, "setsid") || p.session != nil {
		t.Errorf("conditions %+v", l)
	}
}
