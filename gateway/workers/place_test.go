package workers

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/placement"
)

// TestPlace: where workers run first, and whether they may move.
func TestPlace(t *testing.T) {
	two := placement.Machine{Allowed: []int{0, 1}, Interrupts: []int{1}}
	for _, c := range []struct {
		name   string
		m      placement.Machine
		change func(*config.Configuration)
		want   []int
		moves  bool
	}{
		{"by interrupts", two, func(*config.Configuration) {}, []int{0, 0}, true},
		{"as configured", two, func(c *config.Configuration) { c.WorkerCPUs = []int{1} }, []int{1, 1}, false},
		{"polling", two, func(c *config.Configuration) { c.Sockets.BusyPoll = 20_000 }, []int{0, 1}, false},
		{"one CPU", placement.Machine{Allowed: []int{4}}, func(*config.Configuration) {}, []int{4, 4}, false},
		{"one CPU, and isolated ones", placement.Machine{Allowed: []int{0}, Isolated: []int{1, 2}},
			func(*config.Configuration) {}, []int{1, 2}, true},
		{"no CPUs known", placement.Machine{}, func(*config.Configuration) {}, []int{-1, -1}, false},
	} {
		s := config.Default()
		c.change(s)
		p, moves := (&Config{Settings: s, Plan: devices.Plan{Workers: 2}, Machine: c.m}).place()
		if !slices.Equal(p.CPUs, c.want) || moves != c.moves {
			t.Errorf("%s: %v, moves %v; want %v, %v", c.name, p.CPUs, moves, c.want, c.moves)
		}
	}
}

// TestWaiting: how workers wait, by configuration and by where packets arrive.
func TestWaiting(t *testing.T) {
	const file = "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n"
	const us, ms = time.Microsecond, time.Millisecond
	shared := fastpath.Waiting{Spin: 20 * us, SpinAsWorked: true, Coalesce: 30 * us, Sleep: 500 * ms}
	dedicated := fastpath.Waiting{Spin: ms, Sleep: 500 * ms}
	for _, c := range []struct {
		text          string
		known, arrive bool
		want          fastpath.Waiting
		why           string
	}{
		{"", true, false, dedicated, "1ms before it sleeps (dedicated, and no packets arrive here)"},
		{"", true, true, shared, "no longer than it worked on packets (dedicated, but as shared where packets arrive)"},
		{"", false, false, shared, "until known"},
		{"sockets: {busyPoll: 20us}", false, true, dedicated, "poll the NIC themselves"},
		{"waiting: shared", true, false, shared, "(shared)"},
		{"waiting: shared", true, true, shared, "(shared)"},
	} {
		s, err := config.ParseFile("gw.yaml", []byte(file+c.text+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if w, why := waiting(s, c.known, c.arrive); w != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%q, known %v, arrive %v: %+v, %q; want %+v, %q", c.text, c.known, c.arrive, w, why, c.want, c.why)
		}
	}
}

// TestCrowded: real-time threads nap for longer where packets arrive and workers use most of a CPU.
func TestCrowded(t *testing.T) {
	const us = time.Microsecond
	g := &Group{c: Config{Settings: config.Default(), Machine: placement.Machine{Interrupts: []int{0}}}}
	r := &runners{g: g, waitsAs: realTime}
	for _, x := range []struct {
		used    float64
		as      priority
		changed bool
		nap     time.Duration // where packets arrive, if it is longer than the usual one
		apart   bool
	}{
		{-1, realTime, false, 0, false}, {0.59, realTime, false, 0, false}, {0.6, realTime, true, 60 * us, false},
		{0.41, realTime, false, 60 * us, false}, {-1, realTime, false, 60 * us, false}, {-1, normal, false, 0, false},
		{0.39, realTime, true, 0, false}, {0.6, realTime, true, 60 * us, false}, {1, realTime, true, 0, true},
		{1, realTime, false, 0, true},
	} {
		r.waitsAs = x.as
		changed := r.crowd(x.used, !x.apart)
		beside, _ := r.waitingOn(0)
		apart, _ := r.waitingOn(1)
		if changed != x.changed || beside.LongNap != x.nap || beside.Coalesce != 30*us || apart.LongNap != 0 {
			t.Errorf("%+v: changed %v, %+v, elsewhere %+v", x, changed, beside, apart)
		}
	}
}

// TestTimeOf: the first thread ran, and waited at least once for a CPU.
func TestTimeOf(t *testing.T) {
	if got := timeOf(os.Getpid()); got.waited <= 0 || !got.known {
		t.Errorf("the first thread: %+v", got)
	}
	if got := timeOf(1 << 30); got.known {
		t.Errorf("a thread that is not there: %+v", got)
	}
}
