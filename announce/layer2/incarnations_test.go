package layer2

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/layer2/members"
)

// Each incarnation is greater than all earlier ones, also after the clock was set back. It counts
// as own while its link exists, and for a minute after that.
func TestIncarnations(t *testing.T) {
	t.Parallel()
	var i incarnations
	now := time.Now()
	if i.ours(0) || i.ours(uint64(now.UnixNano())) {
		t.Error("one is ours before there is one")
	}
	stays := i.begin(now)
	last := stays
	for _, at := range []time.Duration{time.Second, time.Second, -time.Hour, 2 * time.Second} {
		next := i.begin(now.Add(at))
		if next <= last || at > 0 && next < uint64(now.Add(at).UnixNano()) {
			t.Errorf("after %v: %d follows %d", at, next, last)
		}
		i.end(next, now.Add(at))
		last = next
	}
	i.begin(now.Add(2*time.Second + echoes))
	if !i.ours(last) || !i.ours(stays) {
		t.Error("one that ended just now, or has not ended, is not known")
	}
	i.begin(now.Add(3*time.Second + echoes))
	if i.ours(last) || !i.ours(stays) || len(i.given) != 3 {
		t.Errorf("long after the end of some these are known: %v", i.given)
	}
}

// side is a gateway on a link whose hellos the test delivers.
type side struct {
	speaker *Speaker
	link    *link
}

func newSide(t *testing.T, name string) *side {
	t.Helper()
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Name: name, Every: DefaultEvery, Silent: DefaultSilent,
		JoinTime: DefaultJoinTime, Return: DefaultReturn})
	if err != nil {
		t.Fatal(err)
	}
	return &side{speaker: s}
}

// put adds the link to the plan, as replace does.
func (s *side) put(t *testing.T, wishes []LinkVIP) {
	t.Helper()
	l, err := newLink("none", &s.speaker.config, &s.speaker.incarnations, hello.Keys{make([]byte, 32)}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.carrier.close)
	l.set(&Plan{Ready: true, Serves: true, Links: map[string][]LinkVIP{"none": wishes}}, l.keys, frame.MAC{})
	s.link = l
}

// takeOut removes it, and returns its last hellos.
func (s *side) takeOut() (said []*hello.Hello) {
	for range goodbyes {
		said = append(said, s.link.members.Goodbye(false, time.Now()))
	}
	s.speaker.incarnations.end(s.link.incarnation, time.Now())
	s.link = nil
	return said
}

// run advances time and delivers all hellos.
func run(sides []*side, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, s := range sides {
			if s.link != nil {
				s.link.members.Tick(time.Now())
				pass(sides, s, s.link.members.Hellos(time.Now()))
			}
		}
	}
}

func pass(sides []*side, from *side, said []*hello.Hello) {
	for _, h := range said {
		for _, to := range sides {
			if to != from && to.link != nil {
				to.link.members.Receive(h, frame.MAC{}, time.Now())
			}
		}
	}
}

// A link that leaves the plan and returns later, for example because its addresses were removed for
// a while, is joined like a new one: the others accept its hellos, and each VIP has one owner.
func TestLinkIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wishes []LinkVIP
		for i := range 200 {
			wishes = append(wishes, LinkVIP{VIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Grade: announce.Yes})
		}
		var sides []*side
		for i := range 3 {
			s := newSide(t, fmt.Sprint("gateway-", i))
			s.put(t, wishes)
			sides = append(sides, s)
		}
		owners := func(when string) (of map[netip.Addr]int) {
			t.Helper()
			of = map[netip.Addr]int{}
			for _, w := range wishes {
				var with []int
				for i, s := range sides {
					if s.link != nil && s.link.members.Owns(w.VIP) {
						with = append(with, i)
					}
				}
				if len(with) != 1 {
					t.Fatalf("%s: %v is with %v", when, w.VIP, with)
				}
				of[w.VIP] = with[0]
			}
			return of
		}
		run(sides, time.Minute)
		before := owners("before")
		for _, away := range []time.Duration{0, 100 * time.Millisecond, 10 * time.Second} {
			pass(sides, sides[0], sides[0].takeOut())
			owners("it is out")
			run(sides, away)
			sides[0].put(t, wishes)
			run(sides, 2*DefaultJoinTime)
			for vip, i := range owners(fmt.Sprintf("it was out for %v", away)) {
				if i != before[vip] {
					t.Errorf("it was out for %v: %v is with %d, and was with %d", away, vip, i, before[vip])
				}
			}
		}
	})
}

// Hellos of another link of this process are Own, also of one that has ended; hellos of another
// node with the same name are not.
func TestOwnLinks(t *testing.T) {
	t.Parallel()
	one, other := newSide(t, "gateway").speaker, newSide(t, "gateway")
	defer one.Close()
	plan := &Plan{Links: map[string][]LinkVIP{"none-0": {}, "none-1": {}}}
	one.replace(plan, nil)
	hear := func(h *hello.Hello) hello.RejectReason {
		l := one.links["none-1"]
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.members.Receive(h, frame.MAC{}, time.Now())
	}
	first := one.links["none-0"]
	one.replace(&Plan{Links: map[string][]LinkVIP{"none-1": {}}}, nil)
	one.ended.Wait()
	one.replace(plan, nil)
	second := one.links["none-0"]
	if second.incarnation <= first.incarnation {
		t.Errorf("a link that is back has incarnation %d after %d", second.incarnation, first.incarnation)
	}
	for _, l := range []*link{first, second} {
		l.mu.Lock()
		h := l.members.Goodbye(false, time.Now())
		l.mu.Unlock()
		if r := hear(h); r != members.Own {
			t.Errorf("a hello of this process is %q", r)
		}
	}
	other.put(t, nil)
	if r := hear(other.link.members.Goodbye(false, time.Now())); r != members.SameName {
		t.Errorf("a hello of another node with the same name is %q", r)
	}
}
