package endpointhealth_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/header"
)

// sim runs a Tracker by a clock of its own. Checks end as answer says.
type sim struct {
	*endpointhealth.Tracker
	now    time.Time
	random *rand.Rand
	// answer returns the result of a check that starts now, and after which time it comes.
	answer  func(s endpointhealth.Start) (endpointhealth.Result, time.Duration)
	pending []ending
	// changed is called with each change.
	changed func(compiler.EndpointHealth)
	started []time.Time
}

type ending struct {
	at time.Time
	s  endpointhealth.Start
	r  endpointhealth.Result
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newSim(t *testing.T, cfg endpointhealth.Config) *sim {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := &sim{now: start, random: rand.New(rand.NewPCG(seed, 0))}
	cfg.Random = s.random.Int64N
	s.Tracker = endpointhealth.New(cfg)
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) { return passes, time.Millisecond }
	s.changed = func(compiler.EndpointHealth) {}
	return s
}

var (
	passes  = endpointhealth.Result{OK: true, Detail: "connected"}
	refuses = endpointhealth.Result{Detail: "refused"}
)

// run advances the clock by steps of 10 ms and calls each before each of them, if it is not nil.
func (s *sim) run(d time.Duration, each func()) {
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(10 * time.Millisecond) {
		if each != nil {
			each()
		}
		for _, begun := range s.Due(s.now, nil) {
			s.started = append(s.started, s.now)
			r, after := s.answer(begun)
			s.pending = append(s.pending, ending{s.now.Add(after), begun, r})
		}
		s.pending = slices.DeleteFunc(s.pending, func(e ending) bool {
			if e.at.After(s.now) {
				return false
			}
			s.Done(e.s, e.r, s.now)
			return true
		})
		for _, h := range s.Changes() {
			s.changed(h)
		}
	}
}

func checks(t *testing.T, text string) objects.Check {
	t.Helper()
	list, err := objects.ParseChecks(text)
	if err != nil {
		t.Fatal(err)
	}
	return list[0].Check
}

// portOf returns a service port of n endpoints in a namespace.
func portOf(t *testing.T, namespace, check string, n int) *compiler.CheckedPort {
	t.Helper()
	p := &compiler.CheckedPort{Namespace: namespace, Service: "web", PortName: "http", Proto: header.ProtoTCP,
		Check: checks(t, check)}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		p.Endpoints = append(p.Endpoints, netip.AddrPortFrom(addr, 80))
	}
	return p
}

// silence is what a check finds that nobody answers.
func silence(s endpointhealth.Start) (endpointhealth.Result, time.Duration) {
	return endpointhealth.Result{Detail: "no answer"}, s.Check.Timeout
}

// TestSilentEndpointIsDownInTime: an endpoint that is checked each second and answers no more is
// out after 4 s, whenever it became silent.
func TestSilentEndpointIsDownInTime(t *testing.T) {
	const endpoints = 2000
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: endpoints * 2, MostUnderWay: 2 * endpoints})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s", endpoints)}, s.now)
	s.run(5*time.Second, nil)
	s.answer = silence
	silent, longest, down := s.now, time.Duration(0), 0
	s.changed = func(h compiler.EndpointHealth) {
		if h.Down {
			down++
			longest = max(longest, s.now.Sub(silent))
		}
	}
	s.run(6*time.Second, nil)
	t.Logf("%d endpoints, silent at random times of their interval of 1 s: down after %v at most", down, longest)
	if down != endpoints || longest > 4*time.Second {
		t.Errorf("%d of %d are down, the last after %v, want all within 4s", down, endpoints, longest)
	}
}

// roundTrip reports whether a packet and its answer arrive, with a part of packets lost each way.
func (s *sim) roundTrip(loss float64) bool { return s.random.Float64() >= 1-(1-loss)*(1-loss) }

// lossy answers as an endpoint does behind a network that loses a part of packets each way: a check
// has so many attempts, each of them a SYN and a SYN-ACK.
func (s *sim) lossy(loss float64, attempts int) func(endpointhealth.Start) (endpointhealth.Result, time.Duration) {
	return func(b endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		for i := range attempts {
			if s.roundTrip(loss) {
				return passes, time.Duration(i)*b.Check.Timeout/time.Duration(attempts) + time.Millisecond
			}
		}
		return silence(b)
	}
}

// TestLossFlapsNothing: with 10 % of packets lost each way no endpoint goes down in 10 minutes.
// With one attempt for each check some would: so the test can fail.
func TestLossFlapsNothing(t *testing.T) {
	const endpoints, loss = 200, 0.1
	for _, tt := range []struct {
		name     string
		attempts int // of package probe: 4
		flaps    bool
	}{{"as checks are made", 4, false}, {"one attempt", 1, true}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, endpointhealth.Config{ChecksPerSecond: 1000})
			s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s", endpoints)}, s.now)
			s.answer = s.lossy(loss, tt.attempts)
			s.run(10*time.Minute, nil)
			c := s.Counts()
			t.Logf("%d endpoints, 10 min, %d checks, %d failed, %d went down", endpoints, c.Checks, c.Failures,
				c.WentDown)
			if c.Checks < endpoints*590 || c.WentDown > 0 != tt.flaps {
				t.Errorf("%d went down in %d checks, want some: %v", c.WentDown, c.Checks, tt.flaps)
			}
		})
	}
}

// TestRiseAndFall: fall failures in a row make an endpoint down, rise successes up; fewer do not.
func TestRiseAndFall(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 10})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s fall=3 rise=2", 1)}, s.now)
	script := []endpointhealth.Result{passes, refuses, refuses, passes, refuses, refuses, refuses, passes, refuses,
		passes, passes, refuses, refuses, passes}
	done, events := 0, []string{}
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		r := passes
		if done < len(script) {
			r = script[done]
		}
		done++
		return r, 0
	}
	s.changed = func(h compiler.EndpointHealth) { events = append(events, fmt.Sprintf("%d down %v", done, h.Down)) }
	s.run(20*time.Second, nil)
	if want := []string{"7 down true", "11 down false"}; !slices.Equal(events, want) {
		t.Errorf("changes after check %v, want %v", events, want)
	}
}

// TestIntervals: checks are an interval apart, give or take a tenth; half an interval while a count
// has begun. The first ones are spread over the interval.
func TestIntervals(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 1000})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=10s", 100)}, s.now)
	s.run(10*time.Second+10*time.Millisecond, nil) // what is due in the last step comes with the next
	first := s.started
	if n := len(first); n < 100 {
		t.Errorf("%d checks in the first interval, want one for each endpoint", n)
	}
	early := 0
	for _, at := range first[:100] {
		if at.Sub(start) < 5*time.Second {
			early++
		}
	}
	if early < 20 || early > 80 {
		t.Errorf("%d of 100 first checks are in the first half of the interval", early)
	}
	one := newSim(t, endpointhealth.Config{ChecksPerSecond: 1000})
	one.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=10s", 1)}, one.now)
	one.run(10*time.Minute, nil)
	for i := range one.started[1:] {
		gap := one.started[i+1].Sub(one.started[i])
		if gap < 8900*time.Millisecond || gap > 11100*time.Millisecond {
			t.Errorf("checks are %v apart, want 9 to 11s", gap)
		}
	}
	one.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) { return refuses, 0 }
	one.started = nil
	one.run(25*time.Second, nil)
	if gap := one.started[1].Sub(one.started[0]); gap > 5*time.Second+20*time.Millisecond {
		t.Errorf("%v after a failure is the next check, want half of the interval", gap)
	}
}

// TestSlowStart: an endpoint that comes back gets a tenth more of its weight each tenth of the
// time.
func TestSlowStart(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 10})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s slowstart=10s", 1)}, s.now)
	shares, up := []uint8{}, time.Time{}
	s.changed = func(h compiler.EndpointHealth) {
		if !h.Down {
			if up.IsZero() {
				up = s.now
			}
			shares = append(shares, h.SlowStart)
			if want := up.Add(time.Duration(len(shares)-1) * time.Second); s.now.Sub(want).Abs() > 20*time.Millisecond {
				t.Errorf("share %d is at %v, want %v", h.SlowStart, s.now, want)
			}
		}
	}
	s.answer = silence
	s.run(5*time.Second, nil)
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) { return passes, 0 }
	s.run(15*time.Second, nil)
	if want := []uint8{1, 2, 3, 4, 5, 6, 7, 8, 9, 0}; !slices.Equal(shares, want) {
		t.Errorf("shares are %v, want %v", shares, want)
	}
}

// TestBudget: the oldest Services have room first, and no namespace has more than its share.
func TestBudget(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 100, NamespaceShare: 50})
	a, b := portOf(t, "a", "tcp interval=1s", 40), portOf(t, "a", "tcp interval=1s", 20)
	b.Service = "late"
	c := portOf(t, "b", "tcp interval=2s", 80)
	d := portOf(t, "c", "tcp interval=1s", 30)
	s.SetPorts([]*compiler.CheckedPort{a, b, c, d}, s.now)
	want := []endpointhealth.Denial{{"a", "late", "http"}, {"c", "web", "http"}}
	if got := s.Denied(); !slices.Equal(got, want) {
		t.Errorf("denied are %v, want %v", got, want)
	}
	s.run(4*time.Second, nil)
	if c := s.Counts(); c.Checked != 120 || c.Unchecked != 50 {
		t.Errorf("%d endpoints are checked and %d are not, want 120 and 50", c.Checked, c.Unchecked)
	}
	s.SetPorts([]*compiler.CheckedPort{b, c}, s.now)
	if got := s.Denied(); len(got) > 0 {
		t.Errorf("denied are %v although there is room", got)
	}
}

// TestPortsChange: endpoints that stay keep their state, those that go are up and their results are
// ignored, and another kind of check begins anew.
func TestPortsChange(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 100})
	two := portOf(t, "default", "tcp interval=1s", 2)
	s.SetPorts([]*compiler.CheckedPort{two}, s.now)
	s.answer = silence
	down := map[string]bool{}
	s.changed = func(h compiler.EndpointHealth) { down[h.Addr.String()] = h.Down }
	s.run(6*time.Second, nil)
	if !down["10.0.0.0"] || !down["10.0.0.1"] {
		t.Fatalf("down are %v, want both", down)
	}
	one := portOf(t, "default", "tcp interval=2s", 1) // the first stays, with another interval
	s.SetPorts([]*compiler.CheckedPort{one}, s.now)
	s.run(10*time.Millisecond, nil)
	if !down["10.0.0.0"] || down["10.0.0.1"] {
		t.Errorf("down are %v, want the one that stays", down)
	}
	s.run(5*time.Second, nil)
	if c := s.Counts(); c.Down != 1 || c.WentDown != 2 {
		t.Errorf("counts are %+v, want 1 down of 2 that went down", c)
	}
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "http path=/", 1)}, s.now)
	s.run(10*time.Millisecond, nil)
	if down["10.0.0.0"] {
		t.Error("with another kind of check it is still down")
	}
	s.SetPorts(nil, s.now)
	if _, ok := s.Next(); ok || s.Counts().Down != 0 {
		t.Errorf("without ports there is something to do; counts are %+v", s.Counts())
	}
}

// TestNotMadeChangesNothing: while this host cannot make checks, endpoints that are up stay up, and
// those that are down or suspected stay so; a count that has begun goes on afterwards.
func TestNotMadeChangesNothing(t *testing.T) {
	notMade := endpointhealth.Result{NotMade: true, Detail: "not checked: too many open files"}
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 100})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s fall=3 rise=2", 1)}, s.now)
	result := passes
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) { return result, 0 }
	once := func(r endpointhealth.Result) {
		result = r
		for n := len(s.started); len(s.started) == n; {
			s.run(10*time.Millisecond, nil)
		}
	}
	series := func(list ...endpointhealth.Result) {
		for _, r := range list {
			once(r)
			for range 20 {
				once(notMade)
			}
		}
	}
	series(refuses, refuses)
	if c := s.Counts(); c.Down != 0 || c.Checks != 2 || c.NotMade != 40 {
		t.Fatalf("two failures, and checks that were not made: %+v", c)
	}
	series(refuses)
	if c := s.Counts(); c.Down != 1 {
		t.Fatalf("three failures in a row are not down: %+v", c)
	}
	series(passes)
	if c := s.Counts(); c.Down != 1 {
		t.Fatalf("one success is up: %+v", c)
	}
	series(passes)
	if c := s.Counts(); c.Down != 0 || c.CameUp != 1 {
		t.Fatalf("two successes in a row are not up: %+v", c)
	}
	s.Views(func(_ compiler.Endpoint, v endpointhealth.View) {
		if v.Last != notMade.Detail {
			t.Errorf("the last answer is shown as %q", v.Last)
		}
	})
}

// TestSkippedCountsAsUp: what must not be checked is not down.
func TestSkippedCountsAsUp(t *testing.T) {
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 100})
	s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=1s", 1)}, s.now)
	s.answer = silence
	s.run(6*time.Second, nil)
	if s.Counts().Down != 1 {
		t.Fatal("it is not down")
	}
	s.answer = func(endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		return endpointhealth.Result{Skipped: true, Detail: "not checked: an address of this node"}, 0
	}
	s.run(3*time.Second, nil)
	if s.Counts().Down != 0 {
		t.Error("it is down although it is not checked")
	}
}
