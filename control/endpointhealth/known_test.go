package endpointhealth_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/nat/header"
)

var bothKinds = endpointhealth.Config{ChecksPerSecond: 100, Passive: true}

// known is what a process knows after 20 s in which the endpoints 1 (with a check), and the backend
// 1 (without one) were silent, and endpoint 2 came back just now, with a slow start of 10 s.
func known(t *testing.T, port *compiler.CheckedPort) (list []endpointhealth.Known, at time.Time) {
	t.Helper()
	s, tb := newSim(t, bothKinds), newTable(2)
	s.SetPorts([]*compiler.CheckedPort{port}, s.now)
	came := false
	s.answer = func(b endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		if last := b.Target.Addr().As4()[3]; last == 1 || last == 2 && !came {
			return silence(b)
		}
		return passes, time.Millisecond
	}
	s.runPassive(tb, 20*time.Second, func() { tb.count(0, 1, 1, 0); tb.count(1, 1, 0, 0) })
	came = true
	s.runPassive(tb, 4*time.Second, func() {})
	if c := s.Counts(); c.Down != 2 || c.WentDown != 3 {
		t.Fatalf("counts are %+v", c)
	}
	return s.Known(), s.now
}

func newPort(t *testing.T, check string) *compiler.CheckedPort {
	p := portOf(t, "default", check, 3)
	p.Service = "checked"
	return p
}

func named(p *compiler.CheckedPort, service string, last byte) compiler.Endpoint {
	addr := netip.AddrFrom4([4]byte{10, 0, 0, last})
	name := p.PortName
	return compiler.Endpoint{Namespace: "default", Service: service, PortName: name, Proto: header.ProtoTCP,
		Addr: header.AddrFrom(addr), Port: 80}
}

// TestRemember: the next process goes on with what the one before knew: nothing is up for a moment,
// nothing has to fail again, and a slow start goes on.
func TestRemember(t *testing.T) {
	const check = "tcp interval=1s rise=2 fall=3 slowstart=10s"
	port := newPort(t, check)
	list, now := known(t, port)
	active, slow, passive := named(port, "checked", 1), named(port, "checked", 2), named(port, "web", 1)

	s, tb := newSim(t, bothKinds), newTable(2)
	s.now = now
	got := s.Remember(list, s.now)
	down := func(e compiler.Endpoint) bool {
		return slices.Contains(got, compiler.EndpointHealth{Endpoint: e, Down: true})
	}
	shareOf := func(e compiler.Endpoint) uint8 {
		at := slices.IndexFunc(got, func(h compiler.EndpointHealth) bool { return h.Endpoint == e && !h.Down })
		if at < 0 {
			return 0
		}
		return got[at].SlowStart
	}
	first := shareOf(slow)
	if len(got) != 3 || !down(active) || !down(passive) || first == 0 || first > 4 {
		t.Fatalf("remembered %+v", got)
	}
	if v, ok := s.View(named(port, "checked", 0)); !ok || v.Down || v.At.IsZero() {
		t.Errorf("of the endpoint that answers %+v is known", v)
	}

	s.SetPorts([]*compiler.CheckedPort{port}, s.now)
	silent := true
	s.answer = func(b endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		if silent && b.Target.Addr().As4()[3] == 1 {
			return silence(b)
		}
		return passes, time.Millisecond
	}
	s.changed = func(h compiler.EndpointHealth) {
		if h.Endpoint != slow {
			t.Errorf("%+v", h)
		} else if got = []compiler.EndpointHealth{h}; h.Down || shareOf(slow) != 0 && shareOf(slow) <= first {
			t.Errorf("slow start after %d tenths: %+v", first, h)
		}
	}
	s.runPassive(tb, 12*time.Second, func() {})
	if shareOf(slow) != 0 {
		t.Errorf("the slow start ends with %+v", got)
	}
	if c := s.Counts(); c.Down != 2 || c.WentDown > 0 || c.Failures == 0 {
		t.Errorf("counts are %+v", c)
	}

	silent = false
	up := map[compiler.Endpoint]bool{}
	s.changed = func(h compiler.EndpointHealth) { up[h.Endpoint] = !h.Down }
	s.runPassive(tb, 4*time.Second, func() {})
	if c := s.Counts(); !up[active] || !up[passive] || c.Down > 0 {
		t.Errorf("up are %v, counts are %+v", up, c)
	}
}

// TestForget: what the next process does not check is up there.
func TestForget(t *testing.T) {
	const check = "tcp interval=1s slowstart=10s"
	port := newPort(t, check)
	list, now := known(t, port)
	active, passive := named(port, "checked", 1), named(port, "web", 1)
	for _, tt := range []struct {
		name      string
		cfg       endpointhealth.Config
		ports     []*compiler.CheckedPort
		table     *table
		remembers []compiler.Endpoint // down at first
		up        []compiler.Endpoint // of these, after the first SetPorts and Sample
	}{
		{name: "nothing has a check", cfg: bothKinds, table: newTable(2),
			remembers: []compiler.Endpoint{active, passive}, up: []compiler.Endpoint{active}},
		{name: "another kind of check", cfg: bothKinds, ports: []*compiler.CheckedPort{newPort(t, "http interval=1s")},
			table: newTable(2), remembers: []compiler.Endpoint{active, passive}, up: []compiler.Endpoint{active}},
		{name: "the backend is gone", cfg: bothKinds, ports: []*compiler.CheckedPort{port}, table: newTable(1),
			remembers: []compiler.Endpoint{active, passive}, up: []compiler.Endpoint{passive}},
		{name: "no passive checks", cfg: endpointhealth.Config{ChecksPerSecond: 100},
			ports: []*compiler.CheckedPort{port}, table: newTable(2), remembers: []compiler.Endpoint{active}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, tt.cfg)
			s.now, s.answer = now, silence
			var down, up []compiler.Endpoint
			for _, h := range s.Remember(list, s.now) {
				if h.Down {
					down = append(down, h.Endpoint)
				}
			}
			s.changed = func(h compiler.EndpointHealth) {
				if !h.Down && slices.Contains(down, h.Endpoint) {
					up = append(up, h.Endpoint)
				}
			}
			s.SetPorts(tt.ports, s.now)
			s.runPassive(tt.table, time.Second, func() {})
			if !slices.Equal(down, tt.remembers) || !slices.Equal(up, tt.up) {
				t.Errorf("down at first %v, want %v; then up %v, want %v", down, tt.remembers, up, tt.up)
			}
			if c := s.Counts(); c.Down != len(down)-len(up) {
				t.Errorf("%d count as down, want %d", c.Down, len(down)-len(up))
			}
		})
	}
}

// TestClockStepsDelayNoCheck: all times at which the Tracker wants to be called have a monotonic
// reading, so that a step of the wall clock moves none of them. The times that a former process
// sends have none.
func TestClockStepsDelayNoCheck(t *testing.T) {
	port := newPort(t, "tcp interval=1s rise=2 fall=3 slowstart=10s")
	s := newSim(t, bothKinds)
	s.now = time.Now()
	next := func(step string) {
		t.Helper()
		at, ok := s.Next() // none is due while all checks run
		if ok && (!strings.Contains(at.String(), "m=") || at.After(s.now.Add(2*time.Second))) {
			t.Errorf("%s: the next call is due at %v, at %v", step, at, s.now)
		}
	}
	s.SetPorts([]*compiler.CheckedPort{port}, s.now)
	next("at first")
	s.run(4*time.Second, func() { next("later") })

	list, now := known(t, port)
	s = newSim(t, bothKinds)
	s.now = time.Now()
	for i := range list { // the clock was set back by an hour
		k := &list[i]
		k.LastAt = s.now.Round(0).Add(time.Hour + k.LastAt.Sub(now))
		k.Raised = s.now.Round(0).Add(time.Hour + k.Raised.Sub(now))
	}
	s.Remember(list, s.now)
	s.SetPorts([]*compiler.CheckedPort{port}, s.now)
	next("after a hand-over")
	raised := 0
	s.changed = func(compiler.EndpointHealth) { raised++ }
	s.run(4*time.Second, func() { next("in a slow start") })
	if raised < 2 {
		t.Errorf("%d steps of a slow start in 4 s", raised)
	}
}
