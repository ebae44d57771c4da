package announce

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce/pulse"
)

// tenants is a Source with a pool, and with Services' labels and a Node that a test changes.
type tenants struct {
	pool
	objects *Objects
}

func newTenants(services int) *tenants {
	t := &tenants{pool: pool{uid: "1", addresses: "10.0.0.0/9"}}
	t.objects, _ = t.pool.Objects()
	t.objects.Services = map[string]labels.Set{}
	for i := range services {
		t.objects.Services[fmt.Sprintf("shop/web%d", i)] = labels.Set{"app": "web"}
	}
	return t
}

func (t *tenants) Objects() (*Objects, string) { return t.objects, "" }

// change replaces the objects, as a source does.
func (t *tenants) change(edit func(*Objects)) {
	o := *t.objects
	o.Services = maps.Clone(o.Services)
	edit(&o)
	t.objects = &o
}

func vipOf(i int) pulse.VIP {
	return pulse.VIP{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
		Services: []pulse.Service{{Namespace: "shop", Name: fmt.Sprintf("web%d", i), Usable: true}}}
}

func serve(vips int) *pulse.State {
	s := &pulse.State{Phase: pulse.Serving}
	for i := range vips {
		s.VIPs = append(s.VIPs, vipOf(i))
	}
	return s
}

// replaced returns a state with some VIPs replaced, and the sight of it.
func replaced(s *pulse.State, now time.Time, some map[netip.Addr]*pulse.VIP) (*pulse.State, pulse.Sight) {
	next := *s
	next.VIPs = slices.DeleteFunc(slices.Clone(s.VIPs), func(v pulse.VIP) bool { _, is := some[v.Address]; return is })
	for _, v := range some {
		if v != nil {
			next.VIPs = append(next.VIPs, *v)
		}
	}
	slices.SortFunc(next.VIPs, func(a, b pulse.VIP) int { return a.Address.Compare(b.Address) })
	return &next, pulse.Sight{State: &next, At: now, Since: s, Changed: slices.Collect(maps.Keys(some))}
}

func newFlapLoop(t *testing.T, source Source, speaker Speaker) *Loop {
	return New(Config{Log: slog.New(slog.DiscardHandler), Source: source, Speakers: []Speaker{speaker},
		State: filepath.Join(t.TempDir(), "announced.json")})
}

// randomVIPs returns new versions of some VIPs; nil: the VIP goes.
func randomVIPs(r *rand.Rand, n int) map[netip.Addr]*pulse.VIP {
	some := map[netip.Addr]*pulse.VIP{}
	for range r.IntN(4) {
		v := vipOf(r.IntN(n))
		if r.IntN(8) == 0 {
			v.Address = netip.AddrFrom4([4]byte{10, 128, 0, v.Address.As4()[3]}) // in no pool
		}
		switch r.IntN(4) {
		case 0:
			v.Services[0].Local, v.Services[0].Usable = true, false
		case 1:
			v.Services[0].Impaired = "no endpoint can be reached"
		case 2:
			some[v.Address] = nil
			continue
		}
		some[v.Address] = &v
	}
	return some
}

// TestSomeIsAll: a step that looks only at changed VIPs has the same result as one that looks at
// all, and does not copy the verdicts of other VIPs.
func TestSomeIsAll(t *testing.T) {
	t.Parallel()
	const vips, steps = 60, 1500
	r := rand.New(rand.NewPCG(3, 4))
	source, speaker := newTenants(vips), &noted{}
	l := newFlapLoop(t, source, speaker)
	var all Impairments // gets the same reports, always in full
	now, state := time.Now(), serve(vips)
	l.See(pulse.Sight{State: state, At: now}, now)
	all.Update(l.verdict.VIPs, "", now)
	incremental := 0
	for step := range steps {
		before, impaired := l.world, l.input.Impaired
		now = now.Add(time.Duration(r.IntN(int(3 * time.Second))))
		some := randomVIPs(r, vips)
		touched, full := slices.Collect(maps.Keys(some)), false
		switch r.IntN(40) {
		case 0:
			source.change(func(o *Objects) { o.Node.Cordoned = !o.Node.Cordoned })
			full = true
		case 1:
			source.change(func(o *Objects) {
				o.Node.NetworkUnavailable = map[string]string{"": "node n has no network"}[o.Node.NetworkUnavailable]
			})
			full = true
		case 2, 3, 4:
			i := r.IntN(vips)
			touched = append(touched, vipOf(i).Address, netip.AddrFrom4([4]byte{10, 128, 0, byte(i)}))
			source.change(func(o *Objects) {
				o.Services[fmt.Sprintf("shop/web%d", i)] = labels.Set{"app": fmt.Sprint(step)}
			})
		}
		var sight pulse.Sight
		if state, sight = replaced(state, now, some); r.IntN(20) == 0 {
			sight.Since, sight.Changed, full = nil, nil, true // the reader has connected again
		}
		if r.IntN(40) == 0 {
			sources := []pulse.Source{{Address: netip.MustParseAddr("198.18.0.1"), Rank: r.IntN(3)}}
			full = full || !slices.Equal(sources, state.Sources)
			state.Sources = sources
		}
		l.See(sight, now)
		wantImpaired, _ := all.Update(state.VIPs, source.objects.Node.NetworkUnavailable, now)
		if !reflect.DeepEqual(l.input.Impaired, wantImpaired) {
			t.Fatalf("step %d: impaired %v, want %v", step, l.input.Impaired, wantImpaired)
		}
		in := Input{Node: source.objects.Node, Verdict: l.watch.Verdict(now), Set: l.set,
			Services: source.objects.Services, Impaired: wantImpaired}
		if want := Decide(&in); !reflect.DeepEqual(l.world.VIPs, want) {
			t.Fatalf("step %d: the World is not what a full pass makes of the same: %d VIPs, want %d", step,
				len(l.world.VIPs), len(want))
		}
		if want := DecideSources(&in); !reflect.DeepEqual(l.world.Sources, want) {
			t.Fatalf("step %d: %d source addresses, want %d", step, len(l.world.Sources), len(want))
		}
		if l.world.Since == 0 {
			continue
		}
		if incremental++; l.world.Since != before.Number || full {
			t.Fatalf("step %d: since %d, and the last World was %d", step, l.world.Since, before.Number)
		}
		for _, s := range l.world.VIPs {
			same := before.Find(s.VIP) == s
			if !same && !slices.Contains(l.world.Changed, s.VIP) {
				t.Fatalf("step %d: %v was judged, and is none of the changed %v", step, s.VIP, l.world.Changed)
			}
		}
		for _, vip := range l.world.Changed {
			_, is := wantImpaired[vip]
			_, was := impaired[vip]
			if !is && !was && !slices.Contains(touched, vip) {
				t.Fatalf("step %d: %v counts as changed, and nothing of it is", step, vip)
			}
		}
	}
	if incremental < steps/2 {
		t.Errorf("only %d of %d steps looked at what changed alone", incremental, steps)
	}
}

// TestFlapCostsOneVIP: the allocations of a step for one changed VIP do not grow with the number of
// VIPs.
func TestFlapCostsOneVIP(t *testing.T) {
	cost := func(vips int) float64 {
		l := newFlapLoop(t, newTenants(vips), &noted{})
		now, state := time.Now(), serve(vips)
		l.See(pulse.Sight{State: state, At: now}, now)
		usable := true
		return testing.AllocsPerRun(100, func() {
			v := vipOf(7)
			usable = !usable
			v.Services[0].Local, v.Services[0].Usable = true, usable
			next, sight := replaced(state, now, map[netip.Addr]*pulse.VIP{v.Address: &v})
			state, now = next, now.Add(time.Millisecond)
			l.See(sight, now)
		})
	}
	few, many := cost(20), cost(10_000)
	if many > few+20 {
		t.Errorf("a change of one VIP takes %v allocations among 20 VIPs, and %v among 10,000", few, many)
	}
}
