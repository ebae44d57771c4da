package endpointhealth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// table is a snapshot of one service port with n backends, and what workers have counted of them.
type table struct {
	snapshot *services.Snapshot
	refs     []services.BackendRef
	tallies  map[services.BackendRef]endpointhealth.Tally
	routed   bool
}

func newTable(n int) *table { return newTableOf(n, false) }

func newTableOf(n int, routed bool) *table {
	tb := &table{tallies: map[services.BackendRef]endpointhealth.Tally{}, routed: routed}
	tb.add("default", n)
	return tb
}

// add adds a service port of n backends in a namespace.
func (tb *table) add(namespace string, n int) {
	b, first := services.NewBuilder(tb.snapshot), len(tb.refs)
	id := services.ServiceID(first + 1)
	for i := first; i < first+n; i++ {
		ref := services.MakeBackendRef(uint32(i+1), 1)
		tb.refs = append(tb.refs, ref)
		b.SetBackend(services.Backend{Addr: header.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 80,
			Proto: header.ProtoTCP, Flags: services.BackendReady | services.BackendServing, Ref: ref, Service: id,
			Weight: 1})
	}
	b.SetService(&services.Service{ID: id, Namespace: namespace, Name: "web", PortName: "http",
		Proto: header.ProtoTCP, Port: 80, Backends: tb.refs[first:], Routed: tb.routed})
	tb.snapshot = b.Build()
}

func (tb *table) count(i int, opened, answered, refused uint64) {
	t := tb.tallies[tb.refs[i]]
	tb.tallies[tb.refs[i]] = endpointhealth.Tally{Opened: t.Opened + opened, Answered: t.Answered + answered,
		Refused: t.Refused + refused}
}

// runPassive runs with samples; traffic is called each 10 ms.
func (s *sim) runPassive(tb *table, d time.Duration, traffic func()) {
	next := s.now.Add(time.Duration(s.random.Int64N(int64(endpointhealth.SampleEvery))))
	s.run(d, func() {
		traffic()
		if !s.now.Before(next) {
			next = next.Add(endpointhealth.SampleEvery)
			s.Sample(tb.snapshot, func(r services.BackendRef) endpointhealth.Tally { return tb.tallies[r] }, s.now)
		}
	})
}

// TestPassiveTime: of two endpoints one becomes silent, at 100 connections a second, without any
// check: how long new connections go there.
func TestPassiveTime(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refused uint64
		most    time.Duration
	}{{"silent", 0, 2600 * time.Millisecond}, {"refusing", 1, 1500 * time.Millisecond}} {
		t.Run(tt.name, func(t *testing.T) {
			longest, mostLost := time.Duration(0), 0
			for range 50 {
				s, tb := newSim(t, endpointhealth.Config{Passive: true}), newTable(2)
				dead, down, lost := false, false, 0
				s.answer = func(b endpointhealth.Start) (endpointhealth.Result, time.Duration) {
					switch {
					case !dead || b.Target.Addr().As4()[3] != 0:
						return passes, 0
					case tt.refused > 0:
						return refuses, 0
					}
					return silence(b)
				}
				var at time.Time
				s.changed = func(h compiler.EndpointHealth) {
					if h.Down {
						down = true
						longest = max(longest, s.now.Sub(at))
					}
				}
				turn := 0
				traffic := func() {
					turn++
					i := turn % 2
					switch {
					case !dead || i == 1 || down:
						tb.count(1, 1, 1, 0)
						tb.count(0, uint64(1-i), uint64(1-i), 0)
					default:
						tb.count(0, 1, 0, tt.refused)
						lost++
					}
				}
				s.runPassive(tb, 3*time.Second, traffic)
				if s.Counts().Suspected > 0 {
					t.Fatalf("an endpoint is suspected that answers: %+v", s.Counts())
				}
				dead, at = true, s.now
				s.runPassive(tb, 5*time.Second, traffic)
				mostLost = max(mostLost, lost)
				if !down {
					t.Fatal("it is not down after 5 s")
				}
				dead = false
				s.runPassive(tb, 5*time.Second, traffic)
				if s.Counts().Down > 0 {
					t.Fatal("it is not up again after 5 s")
				}
			}
			t.Logf("%s endpoint, 1 of 2, 100 connections a second, no check: out after %v at most, %d connections at "+
				"most were opened to it", tt.name, longest, mostLost)
			if longest > tt.most {
				t.Errorf("it was down after %v, want %v", longest, tt.most)
			}
		})
	}
}

// TestForgedSYNs: 10,000 SYNs a second that an endpoint never answers, as their checksum is bad, or
// as their TTL ends on the way: it accepts connections, and is not taken out. It is checked once in
// five seconds.
func TestForgedSYNs(t *testing.T) {
	s, tb := newSim(t, endpointhealth.Config{Passive: true}), newTable(10)
	s.runPassive(tb, time.Minute, func() {
		for i := range tb.refs {
			tb.count(i, 10, 0, 0)
		}
	})
	c := s.Counts()
	t.Logf("10,000 SYNs a second for a minute, to 10 endpoints without other clients: %d checks, %d went down",
		c.Checks, c.WentDown)
	if c.WentDown > 0 {
		t.Errorf("%d endpoints were taken out", c.WentDown)
	}
	if c.Checks == 0 || c.Checks > 10*12 {
		t.Errorf("there were %d checks, want one for each endpoint in 5 s at most", c.Checks)
	}
}

// TestOverflow: an endpoint whose queue overflows answers one SYN of two hundred, and no check: an
// answer to anybody shows that it is alive.
func TestOverflow(t *testing.T) {
	s, tb := newSim(t, endpointhealth.Config{Passive: true}), newTable(2)
	s.answer = silence
	n := 0
	s.runPassive(tb, time.Minute, func() {
		n++
		tb.count(0, 100, uint64(n%2), 0)
		tb.count(1, 1, 1, 0)
	})
	if c := s.Counts(); c.WentDown > 0 {
		t.Errorf("it was taken out: %+v", c)
	}
}

// TestLossIsNoSilence: with 10 % of packets lost each way, and few connections, passive checks take
// nothing out in 10 minutes.
func TestLossIsNoSilence(t *testing.T) {
	s, tb := newSim(t, endpointhealth.Config{Passive: true}), newTable(50)
	s.answer = s.lossy(0.1, 4)
	s.runPassive(tb, 10*time.Minute, func() {
		for i := range tb.refs {
			if s.random.IntN(20) == 0 { // five connections a second
				answered := uint64(0)
				if s.roundTrip(0.1) {
					answered = 1
				}
				tb.count(i, 1, answered, 0)
			}
		}
	})
	c := s.Counts()
	t.Logf("50 endpoints, 5 connections a second each, 10 min: %d suspected, %d went down", c.Suspected, c.WentDown)
	if c.WentDown > 0 {
		t.Errorf("%d went down", c.WentDown)
	}
}

// TestSuspectsHaveShares: a namespace with more silent endpoints than the gateway checks delays no
// other namespace, not even through a restart, and is named.
func TestSuspectsHaveShares(t *testing.T) {
	for _, share := range []int{0, 50, 100} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			cfg := endpointhealth.Config{Passive: true, NamespaceShare: share}
			s, tb := newSim(t, cfg), newTable(0)
			s.answer = silence
			tb.add("hostile", 1024)
			down := map[string]int{}
			s.changed = func(h compiler.EndpointHealth) {
				if h.Down {
					down[h.Namespace]++
				}
			}
			answers := uint64(0)
			traffic := func() {
				for i := range tb.refs {
					tb.count(i, 1, answers, 0)
				}
			}
			const most = 512
			s.runPassive(tb, 5*time.Second, traffic)
			if s.Counts().Unchecked != 1024-most || down["hostile"] != most {
				t.Errorf("%d endpoints of one namespace are down and %d not checked, want %d each", down["hostile"],
					s.Counts().Unchecked, most)
			}
			want := []endpointhealth.Denial{{Namespace: "hostile", Service: "web", PortName: "http"}}
			if got := s.DeniedSuspects(s.now); !slices.Equal(got, want) {
				t.Errorf("denied are %v, want %v", got, want)
			}
			tb.add("honest", 1)
			s.runPassive(tb, 3*time.Second, traffic)
			if down["honest"] != 1 {
				t.Error("a silent endpoint of another namespace is not down after 3 s")
			}
			next := newSim(t, cfg)
			if got := len(next.Remember(s.Known(), s.now)); got != most+1 {
				t.Errorf("the next process has %d endpoints that are down, want %d", got, most+1)
			}
			answers = 1
			s.answer = s.lossy(0, 1)
			s.runPassive(tb, 70*time.Second, traffic)
			if n, list := s.Counts().Unchecked, s.DeniedSuspects(s.now); n != 0 || len(list) > 0 {
				t.Errorf("when all answer again %d are not checked, of %v", n, list)
			}
		})
	}
}

// TestPassiveIsOff: by configuration, and for ports that are not to be checked.
func TestPassiveIsOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		s, tb := newSim(t, endpointhealth.Config{Passive: !off}), newTable(1)
		if !off {
			s.SetPorts([]*compiler.CheckedPort{{Namespace: "default", Service: "web", PortName: "http",
				Proto: header.ProtoTCP}}, s.now)
		}
		s.answer = silence
		s.runPassive(tb, 10*time.Second, func() { tb.count(0, 1, 0, 0) })
		if c := s.Counts(); c.Suspected > 0 {
			t.Errorf("passive %v: counts are %+v, want none", !off, c)
		}
	}
}

// TestSuspectedEndpointGoes: it is up when it is no endpoint any more, and the next of its index is
// another.
func TestSuspectedEndpointGoes(t *testing.T) {
	s, tb := newSim(t, endpointhealth.Config{Passive: true}), newTable(2)
	s.answer = silence
	var last compiler.EndpointHealth
	s.changed = func(h compiler.EndpointHealth) { last = h }
	s.runPassive(tb, 5*time.Second, func() { tb.count(0, 1, 0, 0) })
	if !last.Down {
		t.Fatal("it is not down")
	}
	b := services.NewBuilder(tb.snapshot)
	b.DeleteBackend(tb.refs[0])
	tb.snapshot = b.Build()
	s.runPassive(tb, time.Second, func() {})
	if last.Down || s.Counts().Down != 0 {
		t.Errorf("it is still down: %+v", s.Counts())
	}
	if _, ok := s.Next(); ok {
		t.Error("it is still checked")
	}
}

// TestUnreturned: an endpoint of a routed Service that accepts checks, and from which no client
// gets an answer, is reported until a client gets one. It stays up. Endpoints of other Services,
// endpoints that are down and endpoints that answer are not reported.
func TestUnreturned(t *testing.T) {
	for _, tt := range []struct {
		name             string
		routed, up, want bool
	}{{"routed", true, true, true}, {"translated", false, true, false}, {"down", true, false, false}} {
		for _, checked := range []bool{false, true} {
			s, tb := newSim(t, bothKinds), newTableOf(2, tt.routed)
			s.answer = func(b endpointhealth.Start) (endpointhealth.Result, time.Duration) {
				if tt.up {
					return passes, time.Millisecond
				}
				return silence(b)
			}
			if checked {
				s.SetPorts([]*compiler.CheckedPort{portOf(t, "default", "tcp interval=10m", 2)}, s.now)
			}
			s.runPassive(tb, 30*time.Second, func() { tb.count(0, 1, 0, 0); tb.count(1, 1, 1, 0) })
			list := s.Unreturned()
			want := []endpointhealth.Denial{{Namespace: "default", Service: "web", PortName: "http"}}
			if tt.want != slices.Equal(list, want) || tt.up && s.Counts().Down > 0 {
				t.Errorf("%s, with a check %t: %v, %+v", tt.name, checked, list, s.Counts())
			}
			s.runPassive(tb, 2*time.Second, func() { tb.count(0, 1, 1, 0) })
			if list := s.Unreturned(); len(list) > 0 {
				t.Errorf("%s: %v after an answer", tt.name, list)
			}
			s.runPassive(tb, 30*time.Second, func() { tb.count(0, 1, 0, 0) })
			s.runPassive(newTableOf(0, false), time.Second, func() {})
			if list := s.Unreturned(); len(list) > 0 {
				t.Errorf("%s: %v without the Service", tt.name, list)
			}
		}
	}
}
