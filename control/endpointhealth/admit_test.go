package endpointhealth_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
)

// busy returns the checks under way, of all and by namespace.
func (s *sim) busy() (all int, by map[string]int) {
	by = map[string]int{}
	for _, p := range s.pending {
		by[p.s.Namespace]++
	}
	return len(s.pending), by
}

// TestUnderWay: whatever intervals and timeouts say, checks under way have a bound, of all and of a
// namespace, and those that wait say nothing about their endpoints.
func TestUnderWay(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, NamespaceShare: 50})
	var ports []*compiler.CheckedPort
	for i := range 40 {
		p := portOf(t, "hostile", "tcp interval=10m timeout=10s", 500)
		p.Service = fmt.Sprintf("s%d", i)
		ports = append(ports, p)
	}
	for i := range 3 {
		ports = append(ports, portOf(t, fmt.Sprintf("hostile-%d", i), "http interval=20s timeout=10s", 3000))
	}
	s.answer = silence
	s.SetPorts(ports, s.now)
	most, mostOf := 0, 0
	s.run(time.Minute, func() {
		all, by := s.busy()
		most = max(most, all)
		for _, n := range by {
			mostOf = max(mostOf, n)
		}
	})
	t.Logf("at most %d checks under way, %d of a namespace, %d wait", most, mostOf, s.Counts().Waiting)
	if most == 0 || most > endpointhealth.MostUnderWay || mostOf > endpointhealth.MostUnderWay/2 {
		t.Errorf("%d checks under way, %d of a namespace, want %d and %d at most", most, mostOf,
			endpointhealth.MostUnderWay, endpointhealth.MostUnderWay/2)
	}
	if s.Counts().Waiting == 0 {
		t.Error("no check waits, so the bound was not reached")
	}
	if late := s.Late(s.now); len(late) == 0 || late[0].Namespace != "hostile-0" {
		t.Errorf("late are %v, want ports of hostile-0 and others", late)
	}
	s.SetPorts(nil, s.now)
	s.run(20*time.Second, nil) // results of endpoints that are gone give back their room
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) { return passes, time.Millisecond }
	s.started = nil
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "b", "tcp interval=1s", 900)}, s.now)
	s.run(10*time.Second, nil)
	if c := s.Counts(); c.Waiting != 0 || len(s.started) < 8000 {
		t.Errorf("%d checks wait and %d were started, want 0 and 8,000 at least", c.Waiting, len(s.started))
	}
	s.run(2*time.Minute, nil)
	if late := s.Late(s.now); len(late) > 0 {
		t.Errorf("late are %v after the end of what was", late)
	}
}

// TestLanesShareBounds: endpoints with resolved and with unresolved addresses of a namespace
// together have its share of checks under way and of processor time.
func TestLanesShareBounds(t *testing.T) {
	unresolved := func(a netip.Addr) bool { return a.As4()[1] == 1 }
	for name, c := range map[string]struct {
		check   string
		seconds int
		answer  func(endpointhealth.Start) (endpointhealth.Result, time.Duration)
		most    int // checks started
	}{
		"under way": {"tcp interval=10m timeout=10s", 9, silence, 50},
		// A check costs as much as 20 of TCP: 100 a second, and 2 s from the bucket.
		"processor time": {"http interval=1s", 20, func(endpointhealth.Start) (endpointhealth.Result, time.Duration) {
			return endpointhealth.Result{OK: true, Spent: time.Millisecond}, time.Millisecond
		}, 22*100 + 50},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, NamespaceShare: 50, MostUnderWay: 100,
				Unresolved: unresolved, MostUnresolved: 1000})
			here, away := portOf(t, "n", c.check, 300), portOf(t, "n", c.check, 300)
			away.Service, away.Endpoints = "away", offset(away.Endpoints, netip.AddrFrom4([4]byte{10, 1, 0, 0}))
			for _, p := range []*compiler.CheckedPort{here, away} {
				p.Check.Interval = min(p.Check.Interval, 5*time.Second)
			}
			s.answer = c.answer
			s.SetPorts([]*compiler.CheckedPort{here, away}, s.now)
			s.run(time.Duration(c.seconds)*time.Second, nil)
			if len(s.started) > c.most || len(s.started) < c.most/2 {
				t.Errorf("%d checks were started, want %d at most", len(s.started), c.most)
			}
		})
	}
}

// TestHostileDelaysNobody: namespaces that use all that they get delay no check of another by more
// than 100 ms, which the grid of starts alone may take, and change no health of its endpoints.
func TestHostileDelaysNobody(t *testing.T) {
	for _, share := range []int{50, 100} {
		for kind, n := range map[string]int{"tcp interval=10s timeout=10s": 900, "https interval=1s timeout=1s": 110} {
			t.Run(fmt.Sprintf("share %d, %s", share, kind), func(t *testing.T) {
				hostileDelaysNobody(t, share, kind, n)
			})
		}
	}
}

func hostileDelaysNobody(t *testing.T, share int, kind string, n int) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, NamespaceShare: share})
	honest := portOf(t, "honest", "http interval=2s", 50)
	ports := []*compiler.CheckedPort{honest}
	for i := range 6 { // more than budgets of checks a second have room for
		ports = append(ports, portOf(t, fmt.Sprintf("hostile-%d", i), kind, n))
		for j := range 3 {
			p := portOf(t, fmt.Sprintf("hostile-%d", i), "tcp interval=10m timeout=10s", 2000)
			p.Service = fmt.Sprintf("s%d", j)
			ports = append(ports, p)
		}
	}
	due, slowest := map[string]time.Time{}, time.Duration(0)
	s.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		if c.Namespace != "honest" {
			r := endpointhealth.Result{Detail: "no answer", Spent: 4 * time.Millisecond}
			return r, c.Check.Timeout - time.Duration(s.random.IntN(100))*time.Millisecond
		}
		name := c.Target.String()
		if last, ok := due[name]; ok {
			slowest = max(slowest, s.now.Sub(last))
		}
		due[name] = s.now
		return passes, time.Millisecond
	}
	s.changed = func(h compiler.EndpointHealth) {
		if h.Namespace == "honest" {
			t.Errorf("%v changed", h)
		}
	}
	s.SetPorts(ports, s.now)
	s.run(time.Minute, nil)
	const most = 2200*time.Millisecond + 200*time.Millisecond
	t.Logf("an endpoint of the honest namespace was checked each %v at most; %d wait", slowest, s.Counts().Waiting)
	if len(due) != 50 || slowest > most {
		t.Errorf("%d endpoints, checked each %v at most, want 50 and %v", len(due), slowest, most)
	}
	for _, d := range s.Late(s.now) {
		if d.Namespace == "honest" {
			t.Error("the honest namespace is late")
		}
	}
}

// TestProcessorTime: what checks cost is bounded, of all and of a namespace, with retries at half
// intervals and whatever a result says that it cost.
func TestProcessorTime(t *testing.T) {
	const perSecond = 4000
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: perSecond, NamespaceShare: 50})
	var ports []*compiler.CheckedPort
	for i := range 3 {
		ports = append(ports, portOf(t, fmt.Sprintf("n%d", i), "https interval=1s fall=10", 200))
	}
	spent, first := map[string]time.Duration{}, map[string]int{}
	s.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		cost := time.Duration(1+rand.IntN(4)) * time.Millisecond
		spent[c.Namespace] += cost
		first[c.Namespace]++
		return endpointhealth.Result{Detail: "status 500", Spent: cost, OK: rand.IntN(2) == 0}, 10 * time.Millisecond
	}
	s.SetPorts(ports, s.now)
	const d = time.Minute
	s.run(d, nil)
	all := time.Duration(0)
	for n, each := range spent {
		all += each
		t.Logf("%s: %d checks, %.1f %% of a CPU", n, first[n], 100*float64(each)/float64(d))
		if each > d/10+time.Second {
			t.Errorf("namespace %s: %v of processor time in %v, want a tenth at most", n, each, d)
		}
	}
	if bound := d * perSecond * 50 / 1_000_000; all > bound+time.Second || all < bound/2 {
		t.Errorf("%v of processor time in %v, want %v", all, d, bound)
	}
}

// TestSuspicionDoesNotWait: active checks of its own namespace do not delay that of a suspected
// endpoint.
func TestSuspicionDoesNotWait(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, NamespaceShare: 50, Passive: true, MostUnderWay: 10})
	hog := portOf(t, "default", "tcp interval=10s timeout=10s", 100)
	hog.Service = "hog"
	s.SetPorts([]*compiler.CheckedPort{hog}, s.now)
	s.answer = silence
	s.run(15*time.Second, nil)
	tb := newTable(1)
	s.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		if c.Check == endpointhealth.PassiveCheck {
			return refuses, time.Millisecond
		}
		return silence(c)
	}
	downAt := time.Time{}
	s.changed = func(h compiler.EndpointHealth) {
		if h.Down && downAt.IsZero() && h.Service == "web" {
			downAt = s.now
		}
	}
	begin := s.now
	s.runPassive(tb, 5*time.Second, func() { tb.count(0, 10, 0, 0) })
	if downAt.IsZero() || downAt.Sub(begin) > 3*time.Second {
		t.Errorf("down at %v, want within 3 s of %v", downAt, begin)
	}
}
