package announce

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/announce/view"
)

// busy is a Source whose objects change all the time, until it has been read twice.
type busy struct {
	during time.Duration
	asked  atomic.Int64
	done   chan struct{}
}

func (b *busy) Run(_ context.Context, changed func()) {
	defer close(b.done)
	begin := time.Now()
	for time.Since(begin) < b.during || b.asked.Load() < 2 && time.Since(begin) < time.Minute {
		changed()
		time.Sleep(100 * time.Microsecond)
	}
}

func (b *busy) Objects() (*Objects, string) {
	b.asked.Add(1)
	return &Objects{}, ""
}

// TestChangesAreGathered: objects that change all the time are read some twenty times a second.
func TestChangesAreGathered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := &busy{during: 500 * time.Millisecond, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		New(Config{Log: slog.New(slog.DiscardHandler), Source: b, State: filepath.Join(dir, "announced.json"),
			Gateway: filepath.Join(dir, "pulse.sock")}).Run(ctx)
	}()
	<-b.done
	asked, most := b.asked.Load(), int64(time.Since(begin)/gather)+5 // the first, the gateway's, a tick
	if asked < 2 || asked > most {
		t.Errorf("objects were read %d times, want %d at most", asked, most)
	}
	cancel()
	<-ended
}

// fixed is a Source whose objects are complete at once.
type fixed struct{}

func (fixed) Run(context.Context, func()) {}
func (fixed) Objects() (*Objects, string) { return &Objects{}, "" }

// noted is a Speaker that records the applied Worlds.
type noted struct{ worlds []*World }

func (*noted) Name() string                 { return "noted" }
func (*noted) Changed() <-chan struct{}     { return nil }
func (n *noted) Apply(w *World)             { n.worlds = append(n.worlds, w) }
func (*noted) Report() Report               { return Report{} }
func (*noted) Lines(netip.Addr) []view.Line { return nil }
func (*noted) Close()                       {}

// pool is a Source with an AddressPool.
type pool struct {
	fixed
	uid, addresses string
}

func (p pool) Objects() (*Objects, string) {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1", "kind": "AddressPool",
		"metadata": map[string]any{"name": "public", "uid": p.uid},
		"spec":     map[string]any{"addresses": []any{p.addresses}}}}
	return &Objects{Kinds: []*unstructured.Unstructured{o}}, ""
}

// unlisted is a Source with MetalLB's pool, which can be listed or not.
type unlisted struct {
	fixed
	is bool
}

func (u unlisted) Objects() (*Objects, string) {
	o, _ := pool{uid: "1", addresses: "2001:db8::1-2001:db8::9"}.Objects()
	o.Kinds[0].SetAPIVersion("metallb.io/v1beta1")
	o.Kinds[0].SetKind("IPAddressPool")
	if o.Unlisted = u.is; u.is {
		o.Kinds = nil
	}
	return o, ""
}

// TestUnreadablePool: an announcer that starts while a pool cannot be read withdraws none of its
// addresses and announces no others, even if a status lists them: neither addresses of another
// controller, nor any address if it is another pool or its previous version is unknown.
func TestUnreadablePool(t *testing.T) {
	t.Parallel()
	of, other := netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("203.0.113.5")
	var vips []pulse.VIP
	for _, a := range []netip.Addr{of, other} {
		vips = append(vips, pulse.VIP{Address: a, Services: []pulse.Service{{Namespace: "default", Name: "web",
			Usable: true}}})
	}
	const good, bad = "2001:db8::1-2001:db8::9", "2001:db8::9-2001:db8::1"
	state := filepath.Join(t.TempDir(), "announced.json")
	now := time.Now()
	start := func(source Source) map[netip.Addr]Grade {
		t.Helper()
		n := &noted{}
		l := New(Config{Log: slog.New(slog.DiscardHandler), Source: source, Hold: time.Minute, Speakers: []Speaker{n},
			State: state})
		l.pulses.waiting = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}, At: now}}
		l.step(now, true)
		grades := map[netip.Addr]Grade{}
		for _, s := range n.worlds[len(n.worlds)-1].VIPs {
			grades[s.VIP] = s.Grade
		}
		return grades
	}
	for _, test := range []struct {
		name   string
		source Source
		want   Grade
	}{
		{"a new pool with a mistake", pool{uid: "1", addresses: bad}, No},
		{"without it", pool{uid: "1", addresses: good}, Yes},
		{"with a mistake again", pool{uid: "1", addresses: bad}, Yes},
		{"and the next process", pool{uid: "1", addresses: bad}, Yes},
		{"another pool of that name", pool{uid: "2", addresses: bad}, No},
		{"and the one before is forgotten", pool{uid: "1", addresses: bad}, No},
		{"one of MetalLB", unlisted{}, Yes},
		{"and it cannot be listed", unlisted{is: true}, Yes},
		{"and it is not there", fixed{}, No},
		{"and it was not there, and cannot be listed", unlisted{is: true}, No},
	} {
		if got := start(test.source); got[of] != test.want || got[other] != No || len(got) != 2 {
			t.Errorf("%s: %v, want %v for %v", test.name, got, test.want, of)
		}
	}
}

// TestStateOfBefore: a file without pools, from an older version, can be read.
func TestStateOfBefore(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "announced.json")
	text := `{"version":1,"vips":[{"address":"192.0.2.1","services":` +
		`[{"namespace":"default","name":"web","usable":true}]}]}`
	if err := os.WriteFile(state, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := load(state)
	if err != nil || len(s.VIPs) != 1 || s.VIPs[0].Address != netip.MustParseAddr("192.0.2.1") || !Resumes(state) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := store(state, saved{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("nothing is announced, and no pool was read: %v", err)
	}
}

// TestViewStays: a view that a client reads does not change with the loop's next step.
func TestViewStays(t *testing.T) {
	t.Parallel()
	l := New(Config{Log: slog.New(slog.DiscardHandler), Source: pool{uid: "1", addresses: "192.0.2.0/24"}})
	until := time.Now().Add(time.Second)
	l.verdict.Until = until
	l.publish("")
	v := l.View()
	l.verdict.Until = time.Time{}
	if v.Until == nil || !v.Until.Equal(until) {
		t.Errorf("until %v, want %v", v.Until, until)
	}
}

// withNode is a Source whose Node was read from an API server, and was drained or deleted.
type withNode struct {
	pool
	node Node
}

func (s *withNode) Objects() (*Objects, string) {
	o, _ := s.pool.Objects()
	o.Node, o.NodeSeen = s.node, true
	return o, ""
}

// TestNodeIsDeleted: a drained node announces nothing when its Node is deleted, and neither does
// the next announcer, which is told that the Node was seen. Another Node was not.
func TestNodeIsDeleted(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "announced.json")
	s := &withNode{pool: pool{uid: "1", addresses: "192.0.2.0/24"},
		node: Node{Name: "n", Labels: map[string]string{ExcludeLabel: ""}}}
	now := time.Now()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{{Namespace: "default",
		Name: "web", Usable: true}}}}
	if NodeSeen(state, "n") {
		t.Error("seen before the first process")
	}
	for _, forwards := range []bool{false, true} {
		n := &noted{}
		l := New(Config{Log: slog.New(slog.DiscardHandler), Source: s, Hold: time.Minute, Speakers: []Speaker{n},
			State: state})
		if forwards {
			l.pulses.waiting = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}, At: now}}
		}
		l.step(now, true)
		if !NodeSeen(state, "n") || NodeSeen(state, "m") || NodeSeen(state, "") {
			t.Errorf("forwards %v: n %v, m %v", forwards, NodeSeen(state, "n"), NodeSeen(state, "m"))
		}
		last := n.worlds[len(n.worlds)-1]
		if forwards && (len(last.VIPs) != 1 || last.VIPs[0].Grade != No ||
			!strings.Contains(last.VIPs[0].Why, "node n is deleted")) {
			t.Errorf("%+v", last.VIPs[0])
		}
		s.node = Node{Name: "n", Deleted: true}
	}
}

// later is a Source whose objects are complete or not.
type later struct {
	fixed
	waiting string
}

func (s *later) Objects() (*Objects, string) {
	if s.waiting != "" {
		return nil, s.waiting
	}
	return pool{uid: "1", addresses: "192.0.2.0/24"}.Objects()
}

// TestSourceWaitsAgain: the gateway's pulse takes effect, with the last objects, also while a
// source waits for objects that it did not have before.
func TestSourceWaitsAgain(t *testing.T) {
	t.Parallel()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{{Namespace: "default",
		Name: "web", Usable: true}}}}
	n, s := &noted{}, &later{waiting: "the first list"}
	l := New(Config{Log: slog.New(slog.DiscardHandler), Source: s, Hold: time.Minute, Speakers: []Speaker{n},
		State: filepath.Join(t.TempDir(), "announced.json")})
	now := time.Now()
	see := func(failures ...string) {
		l.pulses.put(pulse.Sight{State: &pulse.State{Phase: pulse.Serving, Failures: failures, VIPs: vips}, At: now})
	}
	see()
	l.step(now, true)
	if len(n.worlds) > 0 || l.View().Waiting != s.waiting {
		t.Fatalf("before the first objects: %+v, %+v", n.worlds, l.View())
	}
	s.waiting = ""
	l.step(now, false) // the pulse comes before the call of changed
	if len(n.worlds) != 1 || len(n.worlds[0].VIPs) != 1 || n.worlds[0].VIPs[0].Grade != Yes {
		t.Fatalf("the first objects: %+v", n.worlds)
	}
	s.waiting = "a kind that was installed now"
	see("back0 is down")
	l.step(now, true)
	last := n.worlds[len(n.worlds)-1]
	if last.Gateway != No || len(last.VIPs) != 1 || last.VIPs[0].Grade != No || last.VIPs[0].Why != "back0 is down" ||
		last.VIPs[0].Pool == nil || l.View().Waiting != "" {
		t.Errorf("the gateway has failed while the source waits: %+v, %+v", last, l.View())
	}
}

// TestSessionsBegin: before the first pulse, speakers get the objects without VIPs, unless the
// previous process announced VIPs: then peers may keep their routes until they get all new ones.
func TestSessionsBegin(t *testing.T) {
	t.Parallel()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	for resumed, want := range map[bool]int{false: 1, true: 0} {
		n, state := &noted{}, filepath.Join(t.TempDir(), "announced.json")
		if resumed {
			if err := store(state, saved{VIPs: vips}); err != nil {
				t.Fatal(err)
			}
		}
		l := New(Config{Log: slog.New(slog.DiscardHandler), Source: fixed{}, State: state, Hold: time.Minute,
			Speakers: []Speaker{n}})
		now := time.Now()
		l.step(now, true)
		if len(n.worlds) != want || want > 0 && (n.worlds[0].Gateway != No || len(n.worlds[0].VIPs) > 0) {
			t.Errorf("resumed %v, not heard: %+v", resumed, n.worlds)
		}
		if v := l.View(); strings.Count(v.Waiting, "the gateway") != 1 {
			t.Errorf("resumed %v: it does not say once that it waits for the gateway: %+v", resumed, v)
		}
		l.pulses.waiting = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}, At: now}}
		l.step(now, false)
		if len(n.worlds) != want+1 || len(n.worlds[want].VIPs) != 1 || l.View().Waiting != "" {
			t.Errorf("resumed %v, heard: %+v", resumed, n.worlds)
		}
		l.pulses.waiting = []pulse.Sight{{State: &pulse.State{Phase: pulse.HandingOver, VIPs: vips}, At: now}}
		l.step(now, false)
		if w := n.worlds[want+1]; !n.worlds[want].Serves || w.Serves || w.Gateway != Yes {
			t.Errorf("resumed %v, it serves, and is waited for: %+v", resumed, n.worlds)
		}
	}
}

// slow is a Speaker whose Apply takes a while.
type slow struct {
	noted
	takes time.Duration
	at    chan time.Time // when a World whose gateway does not forward was applied
	count atomic.Int64
}

func (s *slow) Apply(w *World) {
	time.Sleep(s.takes)
	s.count.Add(1)
	if w.Gateway == No && s.at != nil {
		select {
		case s.at <- time.Now():
		default:
		}
	}
}

// TestFlapsCostATenth: steps take at most a tenth of the time, however often VIPs change. A gateway
// that stops forwarding is withdrawn without a delay.
func TestFlapsCostATenth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &slow{takes: 20 * time.Millisecond, at: make(chan time.Time, 1)}
	l := New(Config{Log: slog.New(slog.DiscardHandler), Source: pool{uid: "1", addresses: "192.0.2.0/24"},
		Speakers: []Speaker{s}, State: filepath.Join(dir, "announced.json"), Gateway: filepath.Join(dir, "pulse.sock")})
	see := func(i int, failures ...string) {
		l.pulses.put(pulse.Sight{At: time.Now(), State: &pulse.State{Phase: pulse.Serving, Failures: failures,
			VIPs: []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1"),
				Services: []pulse.Service{{Namespace: "default", Name: "web", Local: true, Usable: i%2 == 0}}}}}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(ctx) }()
	time.Sleep(100 * time.Millisecond) // the loop knows that the gateway's socket does not exist
	see(0)
	time.Sleep(time.Second)
	begin, before := time.Now(), s.count.Load()
	for i := range 400 {
		see(i)
		time.Sleep(5 * time.Millisecond)
	}
	share := float64(s.count.Load()-before) * s.takes.Seconds() / time.Since(begin).Seconds()
	if share > 0.2 || share == 0 { // a tenth, and one tick per second
		t.Errorf("steps took %.2f of the time", share)
	}
	select {
	case <-s.at:
	default:
	}
	begin = time.Now()
	see(0, "the kernel program is not attached")
	select {
	case at := <-s.at:
		if took := at.Sub(begin); took > 150*time.Millisecond {
			t.Errorf("a gateway that does not forward was withdrawn after %v", took)
		}
	case <-time.After(10 * time.Second):
		t.Error("a gateway that does not forward is not withdrawn")
	}
	cancel()
	<-ended
}
