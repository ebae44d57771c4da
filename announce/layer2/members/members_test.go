package members

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
)

const (
	every  = 100 * time.Millisecond
	settle = 2 * time.Second
	stay   = 3 * time.Second
	step   = 5 * time.Millisecond
)

// station is a gateway on a simulated link.
type station struct {
	*Members
	name        string
	incarnation uint64
	stands      bool // it is suspended: it neither receives nor sends
	dead        bool
	late        time.Duration  // offset of its hellos to the others'
	sendsFirst  bool           // when resumed, it sends before it reads waiting hellos
	seen        uint64         // the version of its last step
	waiting     []*hello.Hello // arrived while it was suspended
}

// shares returns how many VIPs each station owns, in one station's view.
func (st *station) shares() (n int) {
	for _, vip := range st.watched {
		if st.Owns(vip) {
			n++
		}
	}
	return n
}

// sim is a link with a clock of its own.
type sim struct {
	t        *testing.T
	now      time.Time
	stations []*station
	vips     []netip.Addr
	// cut reports whether frames from one station do not reach another.
	cut func(from, to string) bool
	// log has all sent hellos.
	log    []*hello.Hello
	random *rand.Rand
}

func newSim(t *testing.T, n, vips int) *sim {
	s := &sim{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), cut: func(string, string) bool { return false },
		random: rand.New(rand.NewPCG(1, 2))}
	for i := range vips {
		s.vips = append(s.vips, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}))
	}
	for i := range n {
		st := &station{name: fmt.Sprintf("gateway-%d", i)}
		s.stations = append(s.stations, st)
		s.start(st)
	}
	return s
}

// start starts the next process of a station.
func (s *sim) start(st *station) {
	st.incarnation++
	st.dead, st.stands, st.waiting, st.seen = false, false, nil, 0
	ours := func(incarnation uint64) bool { return incarnation == st.incarnation }
	st.Members = New(Config{Name: st.name, Incarnation: st.incarnation, IsOwn: ours, Every: every, Silent: 3,
		JoinTime: settle, Return: stay, Nonce: s.random.Uint64}, s.now.Add(st.late))
	st.SetVIPs(s.standings(nil), true, s.now)
}

// standings returns all VIPs; some are not eligible.
func (s *sim) standings(not func(netip.Addr) bool) (list []LocalVIP) {
	for _, v := range s.vips {
		list = append(list, LocalVIP{VIP: v, Eligible: not == nil || !not(v)})
	}
	return list
}

// run advances the clock, and calls look after each step.
func (s *sim) run(d time.Duration, look func()) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(step)
		for _, st := range s.stations {
			if st.dead || st.stands {
				continue
			}
			s.step(st)
		}
		if look != nil {
			look()
		}
	}
}

// step lets a station do what is due, as a link does: Tick before it reads waiting hellos, which is
// the worse order, and as late as allowed.
func (s *sim) step(st *station) {
	_, hurries := st.out.due()
	due := !s.now.Before(st.Next()) || st.Version() != st.seen || hurries > 0
	if due {
		st.Tick(s.now)
	}
	read := func() {
		for _, h := range st.waiting {
			st.Receive(h, frame.MAC{}, s.now)
		}
		st.waiting = nil
	}
	if !st.sendsFirst {
		read()
	}
	if due {
		for _, h := range st.Hellos(s.now) {
			s.send(st, h)
		}
		st.seen = st.Version()
	}
	read()
}

func (s *sim) send(from *station, h *hello.Hello) {
	s.log = append(s.log, h)
	for _, to := range s.stations {
		if to != from && !to.dead && !s.cut(from.name, to.name) {
			to.waiting = append(to.waiting, h)
		}
	}
}

// holders returns the stations that own a VIP in their own view.
func (s *sim) holders(vip netip.Addr) (names []string) {
	for _, st := range s.stations {
		if !st.dead && st.Owns(vip) {
			names = append(names, st.name)
		}
	}
	return names
}

// agreed checks that each VIP has one owner, and returns the owners.
func (s *sim) agreed(when string) map[netip.Addr]string {
	s.t.Helper()
	owners := map[netip.Addr]string{}
	for _, v := range s.vips {
		names := s.holders(v)
		if len(names) != 1 {
			s.t.Fatalf("%s: %v is with %v", when, v, names)
		}
		owners[v] = names[0]
	}
	return owners
}

// moved counts the VIPs with a new owner, by their old owner.
func moved(a, b map[netip.Addr]string) map[string]int {
	n := map[string]int{}
	for v := range a {
		if a[v] != b[v] {
			n[a[v]]++
		}
	}
	return n
}

// No station takes a VIP while it joins; then each has its share, and each VIP one owner.
func TestShares(t *testing.T) {
	t.Parallel()
	s := newSim(t, 4, 400)
	s.run(settle-step, func() {
		for _, v := range s.vips {
			if names := s.holders(v); names != nil {
				t.Fatalf("%v is with %v while all join", v, names)
			}
		}
	})
	s.run(500*time.Millisecond, nil)
	share := map[string]int{}
	for _, owner := range s.agreed("after all have joined") {
		share[owner]++
	}
	for name, n := range share {
		if n < 60 || n > 140 {
			t.Errorf("%s has %d of 400 VIPs", name, n)
		}
	}
	if len(share) != 4 {
		t.Errorf("shares %v", share)
	}
}

// A single station has all VIPs.
func TestAlone(t *testing.T) {
	t.Parallel()
	s := newSim(t, 1, 3)
	s.run(settle+every, nil)
	s.agreed("alone")
}

// When a member dies, only its own VIPs move, within the silence. They come back when its next
// process has joined, not earlier.
func TestDeath(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 300)
	s.run(settle+time.Second, nil)
	before := s.agreed("before")
	s.stations[0].dead = true
	died, changes := s.now, s.stations[1].Changes()
	s.run(3*every+2*step, nil)
	after := s.agreed("after the silence")
	if m := moved(before, after); len(m) != 1 || m["gateway-0"] == 0 {
		t.Errorf("VIPs of %v moved", m)
	}
	t.Logf("all VIPs have an owner %v after the death", s.now.Sub(died))
	if c := s.stations[1].Changes() - changes; int(c) != moved(before, after)["gateway-0"] {
		t.Errorf("%d changes are counted", c)
	}
	for _, st := range s.stations {
		st.Take()
	}
	s.start(s.stations[0])
	s.run(settle-step, func() {
		if m := moved(after, s.agreed("while it joins")); len(m) > 0 {
			t.Fatalf("%v moved while the member joins", m)
		}
	})
	s.run(time.Second, nil)
	if m := moved(before, s.agreed("after the return")); len(m) > 0 {
		t.Errorf("%v are not where they were", m)
	}
	if gained, _ := s.stations[1].Take(); len(gained) > 0 {
		t.Errorf("%d VIPs that did not move are announced", len(gained))
	}
}

// Goodbye moves VIPs at once.
func TestGoodbye(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 30)
	s.run(settle+time.Second, nil)
	s.send(s.stations[0], s.stations[0].Goodbye(false, s.now))
	s.run(step, nil)
	for _, v := range s.vips {
		if names := s.holders(v); len(names) != 1 || names[0] == "gateway-0" {
			t.Errorf("%v is with %v", v, names)
		}
	}
}

// A member that says goodbye and starts again is accepted, and gets its VIPs again.
func TestGoodbyeAndBack(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 30)
	s.run(settle+time.Second, nil)
	before := s.agreed("before")
	s.send(s.stations[0], s.stations[0].Goodbye(false, s.now))
	s.start(s.stations[0])
	s.run(settle+every, nil)
	if m := moved(before, s.agreed("it is back")); len(m) > 0 {
		t.Errorf("%v are not where they were", m)
	}
}

// A clock that is set back between two processes of a member does not keep the others from
// accepting the second one, because hellos are proven by nonces, not by time. Its VIPs stay if it
// was Returning, even if that was a moment ago.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	for _, returns := range []bool{false, true} {
		s := newSim(t, 3, 60)
		one := s.stations[0]
		one.incarnation = 1000
		s.start(one)
		s.run(2*settle, nil)
		before := s.agreed("before")
		if returns {
			s.end(one)
		}
		one.incarnation = 10
		s.start(one)
		s.run(every, nil)
		s.run(settle-every-step, func() {
			if returns {
				s.kept("it joins", before, one)
			}
		})
		s.run(5*every, nil)
		if m := moved(before, s.agreed("it is back")); len(m) > 0 {
			t.Errorf("returns %v: %v are not where they were", returns, m)
		}
	}
}

// A member of which only replayed hellos arrive is distinguished from one whose frames are
// duplicated, and from one with a single replay.
func TestOnlyReplays(t *testing.T) {
	t.Parallel()
	s := newSim(t, 2, 10)
	s.run(settle+time.Second, nil)
	one, victim := s.stations[0], s.stations[1]
	repeat := func() (only bool) {
		last := len(s.log) - 1
		for s.log[last].Name != one.name {
			last--
		}
		if r := victim.Receive(s.log[last], frame.MAC{}, s.now); r != Replayed {
			t.Fatalf("a hello that came before is %q", r)
		}
		return victim.OnlyReplays(one.name, s.now)
	}
	said := func() bool { return strings.Contains(victim.List()[0].Why, "older") }
	for range 10 {
		if s.run(every, nil); repeat() || said() {
			t.Fatal("one whose frames come twice")
		}
	}
	s.send(one, one.Goodbye(false, s.now))
	one.dead = true
	if s.run(step, nil); repeat() || said() {
		t.Fatal("one whose goodbye comes twice")
	}
	for range 10 {
		if s.run(4*every, nil); repeat() {
			t.Fatal("one that is repeated now and then")
		}
	}
	begin := s.now
	for !repeat() {
		if s.run(every, nil); s.now.Sub(begin) > time.Second {
			t.Fatal("one of which all is old")
		}
	}
	if after := s.now.Sub(begin); after < 3*every || !said() {
		t.Errorf("it is said after %v: %+v", after, victim.List())
	}
	s.start(one)
	if s.run(3*every, nil); victim.OnlyReplays(one.name, s.now) || said() {
		t.Errorf("it is back: %+v", victim.List())
	}
}

// kept checks that no other station owns the VIPs of an ended process, that one of the others
// answers for each, and that all other VIPs have their owners.
func (s *sim) kept(when string, before map[netip.Addr]string, away *station) {
	s.t.Helper()
	for _, v := range s.vips {
		if before[v] != away.name {
			if names := s.holders(v); len(names) != 1 || names[0] != before[v] {
				s.t.Fatalf("%s: %v is with %v, and was with %s", when, v, names, before[v])
			}
			continue
		}
		var answer []string
		for _, st := range s.stations {
			if st == away || st.dead {
				continue
			}
			if o := st.Owner(v); o.Name != away.name || !strings.Contains(o.Why(), "answers for it") {
				s.t.Fatalf("%s: %s says that %v is with %q: %s", when, st.name, v, o.Name, o.Why())
			}
			if _, yes := st.AnswersFor(v); yes {
				answer = append(answer, st.name)
			}
		}
		if len(answer) != 1 {
			s.t.Fatalf("%s: %v is answered for by %v", when, v, answer)
		}
	}
}

// end ends a process with Returning.
func (s *sim) end(st *station) {
	for range 3 {
		s.send(st, st.Goodbye(true, s.now))
	}
	st.dead = true
}

// A process that ends and returns keeps its VIPs: no other one owns them meanwhile, and one
// answers.
func TestReturn(t *testing.T) {
	t.Parallel()
	s := newSim(t, 4, 100)
	s.run(settle+time.Second, nil)
	before, changes := s.agreed("before"), s.stations[1].Changes()
	for range 2 {
		s.end(s.stations[0])
		s.run(step, nil)
		s.run(stay-3*every, func() { s.kept("away", before, s.stations[0]) })
		s.start(s.stations[0])
		s.run(settle/2, func() { s.kept("it joins", before, s.stations[0]) })
		s.stations[0].stands = true
		s.run(5*every, func() { s.kept("it stands still", before, s.stations[0]) })
		s.stations[0].stands = false
		s.run(settle/2-5*every-step, func() { s.kept("it joins", before, s.stations[0]) })
		s.run(every, nil)
		if m := moved(before, s.agreed("it is back")); len(m) > 0 {
			t.Errorf("%v are not where they were", m)
		}
		for _, v := range s.vips {
			for _, st := range s.stations {
				if _, yes := st.AnswersFor(v); yes {
					t.Fatalf("%s answers for %v, which is back", st.name, v)
				}
			}
		}
	}
	if c := s.stations[1].Changes() - changes; c > 0 {
		t.Errorf("%d changes are counted", c)
	}
}

// While a process is away, another member answers also for VIPs that no other gateway would
// forward: a member that knows the VIP; not all do.
func TestReturnAlone(t *testing.T) {
	t.Parallel()
	s := newSim(t, 4, 60)
	s.run(settle+time.Second, nil)
	for _, st := range s.stations[1:3] {
		st.SetVIPs(s.standings(func(netip.Addr) bool { return true }), true, s.now)
	}
	s.stations[3].SetVIPs(nil, true, s.now) // it knows no VIP
	s.run(every, nil)
	for v, owner := range s.agreed("before") {
		if owner != "gateway-0" {
			t.Fatalf("%v is with %s, which would not forward it", v, owner)
		}
	}
	s.end(s.stations[0])
	s.run(step, nil)
	answers := map[string]int{}
	s.run(stay-3*every, func() {
		clear(answers)
		for _, v := range s.vips {
			n := 0
			for _, st := range s.stations[1:] {
				if _, yes := st.AnswersFor(v); yes {
					answers[st.name]++
					n++
				}
			}
			if n != 1 {
				t.Fatalf("%v is answered for by %d", v, n)
			}
		}
	})
	if len(answers) != 2 {
		t.Errorf("answers are by %v", answers)
	}
	if o := s.stations[1].Owner(s.vips[0]); !strings.Contains(o.Why(), "answers for it meanwhile") {
		t.Errorf("it says %q", o.Why())
	}
	s.run(stay, nil)
	for _, v := range s.vips {
		if names := s.holders(v); len(names) > 0 {
			t.Errorf("it did not return, and %v is with %v", v, names)
		}
	}
}

// A member loses its VIPs if it does not return in time, falls silent before it has joined, or
// would not forward them any more. A member that ends while it joins does not ask the others to
// keep VIPs.
func TestNoReturn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then func(s *sim, st *station)
		most time.Duration // bound until others own the VIPs
	}{
		"in time": {func(*sim, *station) {}, stay + 2*step},
		"its link": {func(s *sim, st *station) {
			s.start(st)
			s.run(time.Second, nil)
			st.dead = true
		}, settle + 2*every - 700*time.Millisecond},
		"forwards": {func(s *sim, st *station) {
			s.start(st)
			st.SetVIPs(s.standings(func(netip.Addr) bool { return true }), true, s.now)
		}, 2*every + 2*step},
		"ready": {func(s *sim, st *station) {
			s.start(st)
			st.SetVIPs(s.standings(nil), false, s.now)
		}, settle + 6*every},
	} {
		s := newSim(t, 3, 60)
		s.run(settle+time.Second, nil)
		st := s.stations[0]
		s.end(st)
		s.run(step, nil)
		test.then(s, st)
		s.run(test.most, nil)
		for _, v := range s.vips {
			if names := s.holders(v); len(names) != 1 || names[0] == st.name {
				t.Errorf("%s: %v is with %v", name, v, names)
			}
		}
		if l := s.stations[1].List(); l[0].Returning {
			t.Errorf("%s: it is still waited for: %+v", name, l[0])
		}
	}
	s := newSim(t, 2, 10)
	s.run(time.Second, nil)
	if h := s.stations[0].Goodbye(true, s.now); h.Returning || !h.Goodbye {
		t.Errorf("who ends while it joins says %+v", h)
	}
}

// A partitioned link has an owner on each side, and one owner within a second after it is whole.
// Each owner then announces its VIPs again: also VIPs that came meanwhile, that a side began or
// ceased to forward, and in any part of a long list; also if the sides knew each other before, and
// if the processes on one side are new.
func TestPartition(t *testing.T) {
	for _, others := range []bool{false, true} {
		t.Run(fmt.Sprintf("other processes %v", others), func(t *testing.T) {
			t.Parallel()
			partition(t, others)
		})
	}
}

func partition(t *testing.T, others bool) {
	t.Helper()
	s := newSim(t, 4, 300)
	old, far := slices.Clone(s.vips), s.stations[2:]
	begins, ceases := old[:50], old[250:]
	elsewhere := func(list []netip.Addr) func(netip.Addr) bool {
		return func(a netip.Addr) bool { return slices.Contains(list, a) }
	}
	for _, st := range far {
		st.SetVIPs(s.standings(elsewhere(begins)), true, s.now)
	}
	s.run(settle+time.Second, nil)
	before := s.agreed("before")
	s.cut = func(a, b string) bool { return (a < "gateway-2") != (b < "gateway-2") }
	s.run(5*time.Second, nil)
	for _, st := range far {
		if others {
			s.start(st)
		}
	}
	for i := range 300 {
		s.vips = append(s.vips, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	for _, st := range s.stations {
		st.SetVIPs(s.standings(nil), true, s.now)
	}
	s.run(5*time.Second, nil)
	for _, v := range s.vips {
		if names := s.holders(v); len(names) != 2 {
			t.Fatalf("%v is with %v while the link is cut", v, names)
		}
	}
	for _, st := range far {
		st.SetVIPs(s.standings(elsewhere(ceases)), true, s.now)
	}
	s.run(time.Second, nil)
	for _, st := range s.stations {
		st.Take()
	}
	s.cut = func(string, string) bool { return false }
	again := map[string]map[netip.Addr]int{}
	for _, st := range s.stations {
		again[st.name] = map[netip.Addr]int{}
	}
	s.run(time.Second, func() {
		for _, st := range s.stations {
			gained, _ := st.Take()
			for _, v := range gained {
				again[st.name][v]++
			}
		}
	})
	after := s.agreed("a second later")
	for _, v := range old[50:250] {
		if after[v] != before[v] {
			t.Errorf("%v is with %s, and was with %s", v, after[v], before[v])
		}
	}
	for _, v := range s.vips {
		if n := again[after[v]][v]; n < 1 || n > len(far) { // once per member that is heard again
			t.Errorf("%v is announced %d times by its owner", v, n)
		}
		for name := range again {
			if n := again[name][v]; others && n > 0 && name != after[v] { // it knew that it lost the VIP
				t.Errorf("%v is announced %d times by %s, and %s has it", v, n, name, after[v])
			}
		}
	}
}

// A station that is suspended and resumed takes no VIP by mistake: the others have its VIPs
// meanwhile, it gives them up, and gets them back later.
func TestStandstill(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{150 * time.Millisecond, 350 * time.Millisecond, 5 * time.Second} {
		s := newSim(t, 3, 90)
		s.run(settle+time.Second, nil)
		before := s.agreed("before")
		s.stations[0].stands = true
		s.run(d, nil)
		s.stations[0].stands = false
		s.stations[0].Take()
		resumed, lost := s.now, d > 3*every
		var twice time.Duration
		s.run(settle+time.Second, func() {
			if after := s.now.Sub(resumed); lost && after > 3*every && after < settle && s.stations[0].shares() > 0 {
				t.Fatalf("stood for %v: it has VIPs again after %v", d, after)
			}
			for _, v := range s.vips {
				if names := s.holders(v); len(names) > 1 {
					twice = s.now.Sub(resumed)
				}
				if before[v] != "gateway-0" && s.stations[0].Owns(v) {
					t.Fatalf("after %v: gateway-0 takes %v, which is %s's", d, v, before[v])
				}
			}
		})
		t.Logf("stood for %v: two owners for %v at most after it", d, twice)
		if twice > 3*every {
			t.Errorf("stood for %v: two owners for %v", d, twice)
		}
		if gained, _ := s.stations[0].Take(); lost != (len(gained) > 0) {
			t.Errorf("stood for %v: %d VIPs are announced again", d, len(gained))
		}
		if m := moved(before, s.agreed("later")); len(m) > 0 {
			t.Errorf("stood for %v: %v are not where they were", d, m)
		}
	}
}

// A suspended station takes no VIP from the others, however long it was suspended, whenever each
// sends hellos, and whether it sends or reads first when it is resumed.
func TestStandstillOfOthers(t *testing.T) {
	t.Parallel()
	for _, sendsFirst := range []bool{false, true} {
		for late := time.Duration(0); late < every; late += 35 * time.Millisecond {
			for d := 200 * time.Millisecond; d <= 400*time.Millisecond; d += 10 * time.Millisecond {
				s := newSim(t, 3, 30)
				for i, st := range s.stations {
					st.late, st.sendsFirst = time.Duration(i)*late, sendsFirst
					s.start(st)
				}
				s.run(settle+time.Second, nil)
				before, one := s.agreed("before"), s.stations[0]
				look := func() {
					for _, v := range s.vips {
						for _, st := range s.stations[1:] {
							if before[v] == st.name && !st.Owns(v) {
								t.Fatalf("sends first %v, %v apart, stood for %v: %s, which did not, has lost %v",
									sendsFirst, late, d, st.name, v)
							}
						}
					}
				}
				one.stands = true
				s.run(d, look)
				one.stands = false
				s.run(settle+time.Second, look)
				if m := moved(before, s.agreed("later")); len(m) > 0 {
					t.Errorf("stood for %v: %v are not where they were", d, m)
				}
			}
		}
	}
}

// Only stations that would forward a VIP own it, and leaving ones only if there are no others.
func TestEligible(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 60)
	s.run(settle+time.Second, nil)
	only := func(st *station, not func(netip.Addr) bool, rank Rank) {
		list := s.standings(not)
		for i := range list {
			list[i].Rank = rank
		}
		st.SetVIPs(list, true, s.now)
		s.run(2*step, nil)
	}
	all := func(netip.Addr) bool { return true }
	only(s.stations[0], all, Stays)
	for v, owner := range s.agreed("one would forward nothing") {
		if owner == "gateway-0" {
			t.Errorf("%v is with who would not forward it", v)
		}
	}
	only(s.stations[1], nil, Leaves)
	for v, owner := range s.agreed("one leaves") {
		if owner != "gateway-2" {
			t.Errorf("%v is with %s, which leaves", v, owner)
		}
	}
	only(s.stations[2], all, Stays)
	for v, owner := range s.agreed("the one that leaves is the last") {
		if owner != "gateway-1" {
			t.Errorf("%v is with %s", v, owner)
		}
	}
	only(s.stations[0], nil, LastResort)
	for v, owner := range s.agreed("one leaves, and one is the last resort") {
		if owner != "gateway-1" {
			t.Errorf("%v is with %s", v, owner)
		}
	}
	only(s.stations[1], nil, LastResort)
	if share := moved(s.agreed("all are the last resort"), map[netip.Addr]string{}); len(share) != 2 {
		t.Errorf("where all are the last resort VIPs are with %v", share)
	}
	only(s.stations[0], all, Stays)
	if o := s.stations[0].Owner(s.vips[0]); o.Name != "gateway-1" || !strings.Contains(o.Why(), "no other gateway") {
		t.Errorf("who does not have it says %q: %+v", o.Why(), o)
	}
	only(s.stations[1], all, Stays)
	if o := s.stations[0].Owner(s.vips[0]); o.Name != "" || !strings.Contains(o.Why(), "no gateway") {
		t.Errorf("nobody would forward it: %q: %+v", o.Why(), o)
	}
}

// Lists of several parts arrive, even if frames are lost.
func TestLongLists(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 3000)
	s.cut = func(string, string) bool { return s.random.IntN(10) == 0 }
	s.run(settle+20*time.Second, nil)
	s.cut = func(string, string) bool { return false }
	s.run(settle+2*time.Second, nil)
	s.agreed("later")
}

// many returns IPv6 VIPs whose list takes more hellos than are regularly sent during a join.
func many(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 8), 15: byte(i)}))
	}
	return list
}

// A station that joins a link with long lists takes only its own VIPs when it has joined, and the
// others know that it has them.
func TestLongListsAreKnown(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 0)
	s.vips = many(9000) // as in docs/reach.md
	for i, st := range s.stations {
		st.late = time.Duration(i) * 35 * time.Millisecond
		s.start(st)
	}
	s.run(2*settle, nil)
	before, sent := s.agreed("before"), len(s.log)
	s.start(s.stations[0])
	s.run(settle+every, nil)
	if m := moved(before, s.agreed("it has joined")); len(m) > 0 {
		t.Errorf("%v are not where they were", m)
	}
	if n, most := len(s.log)-sent, 3*maxBurst*int((settle+every)/every+1); n > most {
		t.Errorf("%d hellos while it joins, want %d at most", n, most)
	}
}

// A list that changes all the time is complete, too.
func TestListsChange(t *testing.T) {
	t.Parallel()
	s := newSim(t, 3, 0)
	s.vips = many(2000)
	for _, st := range s.stations {
		s.start(st)
	}
	rest := s.vips[50:]
	n := 0
	change := func() {
		if n++; n%10 == 0 { // every 50 ms
			st := s.stations[n/10%3]
			none := s.vips[s.random.IntN(50)]
			st.SetVIPs(s.standings(func(a netip.Addr) bool { return a == none }), true, s.now)
		}
	}
	s.run(2*settle, change)
	s.start(s.stations[0])
	s.run(settle+every, change)
	s.vips = rest
	s.agreed("while some change")
}

// A joining station waits for the list of a live member, but not for ever.
func TestListUnknown(t *testing.T) {
	t.Parallel()
	s := newSim(t, 2, 10)
	other := s.stations[1]
	s.cut = func(from, _ string) bool { return from == other.name }
	speak := func() { // a list with one part missing
		for _, h := range s.log {
			if h.Name == other.name {
				h := *h
				h.Parts = 2
				s.stations[0].waiting = append(s.stations[0].waiting, &h)
			}
		}
		s.log = nil
	}
	s.run(maxJoin*settle-2*step, func() {
		speak()
		if s.stations[0].shares() > 0 {
			t.Fatalf("it has VIPs, and does not know the list of %s", other.name)
		}
	})
	if _, lists := s.stations[0].Joins(s.now); !slices.Equal(lists, []string{other.name}) {
		t.Errorf("it says that it waits for %v", lists)
	}
	s.run(every, speak)
	if n := s.stations[0].shares(); n != len(s.vips) {
		t.Errorf("after the limit it has %d VIPs", n)
	}
}

// Only changed parts are sent at once, and VIPs stay in their parts.
func TestParts(t *testing.T) {
	t.Parallel()
	s := newSim(t, 1, 0)
	s.vips = many(300)
	st := s.stations[0]
	s.start(st)
	var all []*hello.Hello
	said := func() (parts map[uint16]int, of uint16) {
		parts = map[uint16]int{}
		for _, h := range st.Hellos(s.now) {
			all = append(all, h)
			parts[h.Part] = len(h.VIPs)
			of = h.Parts
		}
		return parts, of
	}
	parts, of := said()
	if of != 9 || len(parts) != 9 {
		t.Fatalf("300 VIPs are said in %v of %d", parts, of)
	}
	s.now = s.now.Add(every)
	said()
	before := s.vips
	s.vips = slices.Delete(slices.Clone(before), 40, 41)
	st.SetVIPs(s.standings(nil), true, s.now)
	if parts, of := said(); of != 9 || len(parts) != 1 || parts[1] != 34 {
		t.Errorf("one VIP less is said in %v of %d", parts, of)
	}
	s.vips = append(s.vips, netip.MustParseAddr("2001::ffff"))
	st.SetVIPs(s.standings(nil), true, s.now)
	if parts, _ := said(); len(parts) != 1 || parts[1] != 35 {
		t.Errorf("a VIP more is said in %v", parts)
	}
	s.vips = before[:11]
	st.SetVIPs(s.standings(nil), true, s.now)
	if _, of := said(); of != 1 {
		t.Errorf("11 VIPs are said in %d parts", of)
	}
	// A station that has received all parts has the remaining VIPs.
	o := &member{name: "o"}
	for _, h := range all {
		o.take(h)
	}
	if len(o.vips) != 11 {
		t.Errorf("%d VIPs are heard of", len(o.vips))
	}
}

// A VIP that moves to another part is listed all the time, whichever part arrives first.
func TestTable(t *testing.T) {
	t.Parallel()
	a, b := hello.Entry{VIP: netip.MustParseAddr("10.0.0.1")}, hello.Entry{VIP: netip.MustParseAddr("10.0.0.2")}
	var o table
	for i, h := range []struct {
		part, of uint16
		list     []hello.Entry
		whole    bool
		want     int
	}{
		{0, 2, []hello.Entry{a}, false, 1}, {1, 2, []hello.Entry{b}, true, 2},
		{0, 2, []hello.Entry{a, b}, true, 2}, {1, 2, nil, true, 2}, // it moves from 1 to 0
		{1, 2, []hello.Entry{b}, true, 2}, {0, 2, []hello.Entry{a}, true, 2}, // and back
		{0, 3, []hello.Entry{a}, true, 2}, {0, 1, []hello.Entry{a}, true, 1}, {0, 1, nil, true, 0},
	} {
		o.take(&hello.Hello{Table: uint64(i), Part: h.part, Parts: h.of, VIPs: h.list})
		if len(o.vips) != h.want || o.whole != h.whole {
			t.Errorf("after hello %d: %v, whole %v", i, o.vips, o.whole)
		}
	}
}

// An attacker who replays recorded hellos gains nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSim(t, 2, 10)
	s.run(settle+time.Second, nil)
	victim := s.stations[1]
	refused := map[hello.RejectReason]int{}
	replay := func(when string) {
		t.Helper()
		for _, h := range slices.Clone(s.log) {
			if h.Name != "gateway-0" {
				continue
			}
			if r := victim.Receive(h, frame.MAC{}, s.now); r == "" {
				t.Errorf("%s: sequence %d of process %d is used", when, h.Sequence, h.Incarnation)
			} else {
				refused[r]++
			}
		}
	}
	s.run(every, nil)
	replay("alive")
	s.start(s.stations[0]) // a process from before the loss
	s.run(settle, nil)
	replay("of the process before")
	s.stations[0].dead = true
	s.run(time.Second, nil)
	replay("dead")
	for _, v := range s.vips {
		if !victim.Owns(v) {
			t.Errorf("%v is not with who is left", v)
		}
	}
	s.start(victim) // knows no member
	s.run(every, nil)
	replay("unknown")
	s.start(s.stations[0])
	s.run(2*settle, nil)
	s.agreed("it is back")
	if refused[Replayed] == 0 || refused[Unproven] == 0 {
		t.Errorf("refused: %v", refused)
	}
}

// Hellos of this node, of another node with the same name, and of too many members are not used.
func TestStrangers(t *testing.T) {
	t.Parallel()
	s := newSim(t, 1, 1)
	st := s.stations[0]
	own := st.Hellos(s.now)
	if own = append(own, st.nextHello(0, s.now)); st.Receive(own[0], frame.MAC{}, s.now) != Own {
		t.Error("its own hello is used")
	}
	other := *own[0]
	other.Incarnation++
	if st.Receive(&other, frame.MAC{}, s.now) != SameName {
		t.Error("another node with its name is used")
	}
	for i := range hello.MaxHeard + 1 {
		h := &hello.Hello{Name: fmt.Sprint(i), Parts: 1, Sequence: 1, Heard: st.nonces}
		if r := st.Receive(h, frame.MAC{}, s.now); (r == Full) != (i == hello.MaxHeard) {
			t.Errorf("member %d: %q", i, r)
		}
	}
	s.run(time.Second, nil)
	before := slices.Clone(st.nonces)
	if r := st.Receive(&hello.Hello{Name: "new", Parts: 1, Sequence: 1}, frame.MAC{}, s.now); r != Unproven {
		t.Errorf("when others are dead: %q", r)
	}
	// Recorded hellos are of no use against a member that was replaced.
	h := &hello.Hello{Name: "forgotten", Parts: 1, Sequence: 1, Heard: before}
	if r := st.Receive(h, frame.MAC{}, s.now); r != Unproven {
		t.Errorf("a hello of before one was forgotten: %q", r)
	}
}

// Hellos arrive in one direction only: that causes no repeated changes. When both directions work
// again, each member announces its VIPs, because both owned the VIPs of one of them.
func TestOneWay(t *testing.T) {
	t.Parallel()
	s := newSim(t, 2, 20)
	s.run(settle+time.Second, nil)
	s.cut = func(from, _ string) bool { return from == "gateway-0" }
	s.run(settle+time.Second, nil)
	changes := s.stations[0].Changes()
	for _, st := range s.stations {
		st.Take()
	}
	s.run(time.Minute, nil)
	if c := s.stations[0].Changes(); c != changes {
		t.Errorf("%d changes in a minute", c-changes)
	}
	for _, st := range s.stations {
		if gained, _ := st.Take(); len(gained) > 0 {
			t.Errorf("%s announces %d VIPs meanwhile", st.name, len(gained))
		}
	}
	s.cut = func(string, string) bool { return false }
	s.run(settle+time.Second, nil)
	again := map[netip.Addr]string{}
	for _, st := range s.stations {
		gained, _ := st.Take()
		for _, v := range gained {
			again[v] = st.name
		}
	}
	for v, owner := range s.agreed("later") {
		if again[v] != owner {
			t.Errorf("%v is with %s, and announced again by %q", v, owner, again[v])
		}
	}
}
