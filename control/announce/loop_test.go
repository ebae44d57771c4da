package announce

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/control/pulse"
)

// busy is a Source whose objects change all the time, for a while.
type busy struct {
	during time.Duration
	asked  atomic.Int64
	done   chan struct{}
}

func (b *busy) Run(_ context.Context, changed func()) {
	defer close(b.done)
	for end := time.Now().Add(b.during); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		changed()
	}
}

func (b *busy) Objects() (*Objects, string) {
	b.asked.Add(1)
	return &Objects{}, ""
}

// TestChangesAreGathered: however often objects change, they are read some twenty times a second.
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

// fixed is a Source whose objects are there.
type fixed struct{}

func (fixed) Run(context.Context, func()) {}
func (fixed) Objects() (*Objects, string) { return &Objects{}, "" }

// noted is a Speaker that notes what it is to announce.
type noted struct{ worlds []*World }

func (*noted) Name() string             { return "noted" }
func (*noted) Changed() <-chan struct{} { return nil }
func (n *noted) Apply(w *World)         { n.worlds = append(n.worlds, w) }
func (*noted) Report() Report           { return Report{} }
func (*noted) Close()                   {}

// kept is a Source with a pool that cannot be read, and was changed before.
type kept struct{ fixed }

func (kept) Objects() (*Objects, string) {
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1",
		"kind": "AddressPool", "metadata": map[string]any{"name": "public", "generation": int64(2)},
		"spec": map[string]any{"addresses": []any{"2001:db8::9-2001:db8::1"}}}}
	return &Objects{Kinds: []*unstructured.Unstructured{pool}}, ""
}

// TestUnreadablePool: an announcer that starts while a pool cannot be read withdraws none of its
// addresses, and says why.
func TestUnreadablePool(t *testing.T) {
	t.Parallel()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("2001:db8::5"), Services: []pulse.Service{{Namespace: "default",
		Name: "web", Usable: true}}}}
	n := &noted{}
	l := New(Config{Log: slog.New(slog.DiscardHandler), Source: kept{}, Hold: time.Minute, Speakers: []Speaker{n},
		State: filepath.Join(t.TempDir(), "announced.json")})
	now := time.Now()
	l.sights = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}, At: now}}
	l.step(now, true)
	if len(n.worlds) != 1 || len(n.worlds[0].VIPs) != 1 {
		t.Fatalf("%+v", n.worlds)
	}
	s := n.worlds[0].VIPs[0]
	if s.Grade != Yes || !strings.Contains(s.Why, "pool public cannot be read") || l.View().VIPs[0].Pool != "public" {
		t.Errorf("%+v, %+v", s, l.View())
	}
}

// later is a Source whose objects are there, or waited for.
type later struct {
	fixed
	waiting string
}

func (s *later) Objects() (*Objects, string) {
	if s.waiting != "" {
		return nil, s.waiting
	}
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1",
		"kind": "AddressPool", "metadata": map[string]any{"name": "public"},
		"spec": map[string]any{"addresses": []any{"192.0.2.0/24"}}}}
	return &Objects{Kinds: []*unstructured.Unstructured{pool}}, ""
}

// TestSourceWaitsAgain: what is seen of the gateway counts also while a source waits for something
// that it did not have before, by the objects that were known.
func TestSourceWaitsAgain(t *testing.T) {
	t.Parallel()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{{Namespace: "default",
		Name: "web", Usable: true}}}}
	n, s := &noted{}, &later{waiting: "the first list"}
	l := New(Config{Log: slog.New(slog.DiscardHandler), Source: s, Hold: time.Minute, Speakers: []Speaker{n},
		State: filepath.Join(t.TempDir(), "announced.json")})
	now := time.Now()
	see := func(failures ...string) {
		l.sights = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, Failures: failures, VIPs: vips}, At: now}}
	}
	see()
	l.step(now, true)
	if len(n.worlds) > 0 || l.View().Waiting != s.waiting {
		t.Fatalf("before the first objects: %+v, %+v", n.worlds, l.View())
	}
	s.waiting = ""
	l.step(now, false) // the gateway's pulse comes before the objects are told to have changed
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

// TestSessionsBegin: before the gateway is heard speakers know the objects, and have no VIP; but
// not where the process before announced some, which peers may keep until they are told all.
func TestSessionsBegin(t *testing.T) {
	t.Parallel()
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	for resumed, want := range map[bool]int{false: 1, true: 0} {
		n, state := &noted{}, filepath.Join(t.TempDir(), "announced.json")
		if resumed {
			if err := store(state, vips); err != nil {
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
		if v := l.View(); v.Waiting == "" {
			t.Errorf("resumed %v: it does not wait: %+v", resumed, v)
		}
		l.sights = []pulse.Sight{{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}, At: now}}
		l.step(now, false)
		if len(n.worlds) != want+1 || len(n.worlds[want].VIPs) != 1 || l.View().Waiting != "" {
			t.Errorf("resumed %v, heard: %+v", resumed, n.worlds)
		}
		l.sights = []pulse.Sight{{State: &pulse.State{Phase: pulse.HandingOver, VIPs: vips}, At: now}}
		l.step(now, false)
		if w := n.worlds[want+1]; !n.worlds[want].Serves || w.Serves || w.Gateway != Yes {
			t.Errorf("resumed %v, it serves, and is waited for: %+v", resumed, n.worlds)
		}
	}
}
