package workers

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/thread"
)

// TestGoesFirst: workers have raised priority where they take no time from receiving packets.
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
		{"polls itself", true, nil, []int{0, 1}, true}, {"polls itself, on any CPU", true, nil, []int{-1}, false},
	} {
		first, why := goesFirst(whereabouts{c.poll, c.arrive, c.workers})
		if first != c.want || strings.HasPrefix(why, "raised priority") != c.want {
			t.Errorf("%s: %t, %q", c.name, first, why)
		}
	}
}

// steps are consecutive looks at a process, and its priority after each.
type steps []struct {
	at   whereabouts
	l    load
	want priority
}

func (s steps) check(t *testing.T, p *precedence) {
	t.Helper()
	for i, c := range s {
		why := p.decide(c.at, c.l)
		if p.now != c.want || strings.HasPrefix(why, "raised priority") != (c.want != normal) {
			t.Errorf("step %d: priority %d, %q; want %d", i, p.now, why, c.want)
		}
	}
}

var (
	apart  = whereabouts{arrive: []int{0}, workers: []int{1}}
	beside = whereabouts{arrive: []int{1}, workers: []int{1}}
	half   = whereabouts{arrive: []int{0}, workers: []int{0, 1}}
)

// machine stands for the kernel: a session and the threads of workers.
type machine struct {
	nice, wrote int   // of the session
	session     error // returned by writes of the session
	threads     thread.Priority
	realTime    error // returned when threads ask for real-time priority
	rests       priority
	spun        bool // real-time threads waited in another way than real-time threads must
	other       bool // the session had raised priority while workers did not
}

func (m *machine) Usual() int   { return 0 }
func (m *machine) Close() error { return nil }

func (m *machine) SetNice(nice int) error {
	m.wrote++
	if m.session != nil {
		return m.session
	}
	m.nice = nice
	m.check()
	return nil
}

// check is called after each change.
func (m *machine) check() {
	m.spun = m.spun || m.threads.RealTime && !m.rests.realTime()
	m.other = m.other || m.nice < 0 && m.threads.Nice == 0 && m.session == nil
}

func (m *machine) rest(s priority) {
	m.rests = s
	m.check()
}

func (m *machine) SetPriority(p thread.Priority) error {
	if p.RealTime && m.realTime != nil {
		return m.realTime
	}
	m.threads = p
	m.check()
	return nil
}

// look looks once at workers that poll for packets all the time, while other threads get a share of
// their CPU.
func (m *machine) look(p *precedence, waited float64) {
	p.follow(m, apart, load{used: 1, waited: waited}, m.rest)
}

// TestNoTimeToSpare: busy workers keep normal priority until they have had time to spare for some
// looks.
func TestNoTimeToSpare(t *testing.T) {
	steps{
		{apart, load{busy: 0.8, used: 1}, normal}, {apart, load{busy: 0.5, used: 1}, nice20},
		{apart, load{busy: 0.8, used: 1}, nice20}, {apart, load{busy: 0.9, used: 1}, normal},
		{apart, load{busy: 0.6, used: 1}, normal}, {apart, load{busy: 0.6, used: 1}, normal},
		{apart, load{busy: 0.6, used: 1}, normal}, {apart, load{busy: 0.6, used: 1}, normal},
		{apart, load{busy: 0.8, used: 1}, normal}, {apart, load{busy: 0.6, used: 1}, nice20},
		{beside, load{busy: 0.1, used: 0.9}, normal}, {apart, load{busy: 0.1, used: 1}, nice20},
	}.check(t, &precedence{session: new(machine)})
}

// TestFullWherePacketsArrive: real-time threads that become busy where packets arrive have normal
// priority for a second each time, and not for longer the next time.
func TestFullWherePacketsArrive(t *testing.T) {
	p := &precedence{session: new(machine)}
	for range 5 {
		steps{{beside, load{used: 0.8}, realTime}, {beside, load{used: fullBeside}, normal}}.check(t, p)
		for range holdLeast - 1 {
			steps{{beside, load{used: 0.4}, normal}}.check(t, p)
		}
	}
}

// TestFullBesideOthers: workers that use all of a CPU when they get it, and half of it beside
// another thread, do not change their priority every other look.
func TestFullBesideOthers(t *testing.T) {
	for _, p := range []*precedence{{session: new(machine)}, {whyNot: "no session", shared: true}} {
		before := 0
		for range 1000 {
			l := load{busy: 0.5, used: 0.5}
			if p.now != normal {
				l = load{busy: 1, used: 1}
				before++
			}
			p.decide(apart, l)
		}
		if before == 0 || before > 20 {
			t.Errorf("shared %t: raised priority in %d of 1000 looks", p.shared, before)
		}
	}
}

// TestOthersWantTheCPU: polling workers become real-time threads with breaks while another thread
// wants their CPU, which shows in the share that it gets; if the kernel refuses that, workers leave
// other threads a larger share. After ten seconds the usual priority is tried again, and the next
// time later.
func TestOthersWantTheCPU(t *testing.T) {
	for _, c := range []struct {
		name            string
		p               *precedence
		little, enough  float64 // share of a CPU that other threads get
		usually, wanted priority
	}{
		{"in a session", &precedence{session: new(machine)}, 0.005, 0.011, nice20, realTimeBreaks},
		{"real time refused", &precedence{session: new(machine), realTimeRefused: "why"}, 0.005, 0.011, nice20, nice10},
		{"without a session", &precedence{whyNot: "no session"}, 0.02, 0.05, normal, realTimeBreaks},
		{"without both", &precedence{whyNot: "no session", realTimeRefused: "refused"}, 0.02, 0.05, normal, normal},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps{
				{apart, load{used: 1, waited: c.enough}, c.usually},
				{apart, load{used: 1, waited: c.little}, c.usually},
				{apart, load{used: 1, waited: 3 * c.little}, c.usually},
				{apart, load{used: 1, waited: c.little}, c.usually}, {apart, load{used: -1, waited: -1}, c.usually},
			}.check(t, c.p)
			if c.wanted == c.usually {
				steps{{apart, load{used: 1, waited: c.enough}, c.wanted}}.check(t, c.p)
				return
			}
			// turn returns after how many looks the priority changes.
			turn := func(waited float64, to priority) (looks int) {
				for ; c.p.now != to && looks < 1000; looks++ {
					c.p.decide(apart, load{used: 1, waited: waited})
				}
				return looks
			}
			for _, again := range []int{recheckLooks, 2 * recheckLooks} {
				if looks := turn(c.enough, c.wanted); looks == 0 || looks > 10 {
					t.Errorf("seen after %d looks", looks)
				}
				if looks := turn(0, c.usually); looks != again {
					t.Errorf("looked again after %d looks, want %d", looks, again)
				}
			}
			for range recheckLooks {
				c.p.decide(apart, load{used: 1})
			}
			turn(c.enough, c.wanted)
			if looks := turn(0, c.usually); looks != recheckLooks {
				t.Errorf("without competition, looked again after %d looks, want %d", looks, recheckLooks)
			}
		})
	}
}

// TestNotCounted: where the kernel does not count how long threads wait, no thread is seen to want
// a CPU, so other threads always get a tenth.
func TestNotCounted(t *testing.T) {
	steps{
		{apart, load{used: -1, waited: -1}, nice10}, {apart, load{used: -1, waited: -1}, nice10},
	}.check(t, &precedence{session: new(machine), noSchedstat: true})
}

// TestRealTime: workers that sleep between packets are real-time threads while they sleep a good
// part of the time, if the kernel allows it. They are not while no packets arrive: they would still
// be real-time when a burst begins.
func TestRealTime(t *testing.T) {
	p := &precedence{session: new(machine), shared: true}
	steps{
		{apart, load{idle: true}, nice20}, {apart, load{used: 0.1}, realTime}, {apart, load{used: -1}, realTime},
		{apart, load{used: 0.8}, realTime}, {apart, load{used: 0.9}, nice20}, {apart, load{used: 0.8}, nice20},
		{apart, load{used: -1}, nice20}, {apart, load{used: 0.1}, nice20}, {apart, load{used: 0.1}, nice20},
		{apart, load{used: 0.6}, realTime}, {beside, load{used: 0.9}, realTime}, {apart, load{used: 0.1}, realTime},
		{beside, load{used: 0.94}, normal},
	}.check(t, p)
	steps{
		{beside, load{used: 0.9}, normal}, {beside, load{used: -1}, normal}, {beside, load{used: 0.8}, realTime},
		{whereabouts{}, load{used: 0.1}, normal},
	}.check(t, &precedence{session: new(machine), shared: true})
	// Workers with `waiting: dedicated` sleep where packets arrive.
	steps{
		{apart, load{used: 0.1}, nice20}, {beside, load{used: 0.1}, realTime}, {half, load{used: 0.1}, normal},
		{beside, load{used: 0.1}, realTime}, {whereabouts{}, load{used: 0.1}, normal},
	}.check(t, &precedence{session: new(machine)})
	// Without a session whose nice value can change, workers are real-time threads or have normal
	// priority.
	steps{{apart, load{used: 0.1}, realTime}, {apart, load{used: 0.9}, normal}}.check(t,
		&precedence{whyNot: "no session", shared: true})
}

// TestOrder: workers wait as real-time threads must before they become such threads, until they
// have ceased to be; and the session never has raised priority without its workers.
func TestOrder(t *testing.T) {
	m := new(machine)
	p := &precedence{session: m}
	for range 2 {
		for range 20 {
			m.look(p, 0.011)
		}
		if !m.threads.RealTime || m.rests != realTimeBreaks || m.nice != 0 {
			t.Errorf("while somebody wants the CPU: %+v", m)
		}
		for range 300 {
			m.look(p, 0)
		}
		if m.threads.RealTime || m.threads.Nice != -20 || m.rests.realTime() || m.nice != -20 {
			t.Errorf("while nobody does: %+v", m)
		}
	}
	p.end(m, m.rest)
	if m.threads != (thread.Priority{}) || m.nice != 0 || m.spun || m.other {
		t.Errorf("at the end: %+v", m)
	}
	if why := *p.why.Load(); !strings.HasPrefix(why, "normal priority") {
		t.Errorf("at the end: %q", why)
	}
}

// TestSessionIsWrittenLater: a session that refuses a value with EAGAIN is written at the next
// look; the workers' priority does not depend on it.
func TestSessionIsWrittenLater(t *testing.T) {
	m := &machine{session: unix.EAGAIN}
	p := &precedence{session: m}
	m.look(p, 0)
	if m.threads.Nice != -20 || m.nice != 0 || m.wrote != 1 {
		t.Errorf("at first: %+v", m)
	}
	m.session = nil
	if m.look(p, 0); m.nice != -20 {
		t.Errorf("at the next look: %+v", m)
	}
	m.session = unix.EAGAIN
	for range 20 {
		m.look(p, 0.011)
	}
	if !m.threads.RealTime || p.realTimeRefused != "" {
		t.Errorf("while another thread wants the CPU: %+v, refused %q", m, p.realTimeRefused)
	}
}

// TestRefused: a priority that the kernel refuses is not tried again, leaves nothing behind, and is
// reported.
func TestRefused(t *testing.T) {
	m := &machine{realTime: unix.EPERM}
	p := &precedence{session: m}
	for range 20 {
		m.look(p, 0.011)
	}
	why := *p.why.Load()
	if m.threads.Nice != -10 || m.nice != -10 || m.rests.realTime() || !strings.Contains(why, "no real-time threads") {
		t.Errorf("without real-time threads: %+v, %s", m, why)
	}
	m = &machine{session: unix.EPERM}
	p = &precedence{session: m}
	m.look(p, 0)
	if m.threads != (thread.Priority{}) || !strings.HasPrefix(*p.why.Load(), "normal priority") {
		t.Errorf("without the session: %+v, %s", m, *p.why.Load())
	}
	wrote := m.wrote
	if m.look(p, 0); m.wrote != wrote {
		t.Error("the session is written again")
	}
}

// TestPrecedenceSaysWhyNot: a process whose priority cannot or must not be raised reports why.
func TestPrecedenceSaysWhyNot(t *testing.T) {
	for _, c := range []struct {
		precedence config.Precedence
		why        string
	}{{config.PrecedenceAuto, "setsid"}, {config.PrecedenceNone, "tuning.precedence"}} {
		var p precedence
		m := new(machine)
		s := config.Default()
		s.Tuning.Precedence = c.precedence
		p.open(s) // a test does not lead its session
		m.look(&p, 0)
		l := p.condition()
		if len(l) != 1 || !strings.Contains(l[0].Detail, c.why) || m.threads != (thread.Priority{}) {
			t.Errorf("%s: conditions %+v, %+v", c.precedence, l, m)
		}
	}
}
