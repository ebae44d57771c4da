package compiler

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestEndpointsAreReadAgain: the endpoints of a large Service are kept for the next merge. They are
// read again from all slices when another input of theirs changes, and after that only from slices
// that change.
func TestEndpointsAreReadAgain(t *testing.T) {
	const service, taken = "x", "10.1.0.5" // the address of an endpoint
	configure := func(change func(*Config)) func(*limited) {
		return func(l *limited) {
			cfg := l.Config()
			change(&cfg)
			s, _, _ := l.Configure(cfg)
			l.Release(s.Generation)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*limited)
	}{
		{"an endpoint is drained", func(l *limited) {
			_ = l.Drain(Drain{Addr: header.AddrFrom4([4]byte{10, 1, 0, 5})})
		}},
		{"packets leave from an endpoint's address", configure(func(cfg *Config) {
			cfg.SNAT4 = []header.Addr{header.AddrFrom4([4]byte{10, 1, 0, 5})}
		})},
		{"the node's name", configure(func(cfg *Config) { cfg.NodeName = "b" })},
		{"the node's zone", func(l *limited) { l.tracker.Upsert(limitsSource, zoned("a", "far")) }},
		{"weights of the Service", func(l *limited) {
			x := wide(service, 1, 1, 1)
			x.Annotations = map[string]string{"sluice.dev/weights": taken + "=7"}
			l.tracker.Upsert(limitsSource, x)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLimited(t, Config{NodeName: "a", Scheduler: services.RoundRobin}) // without tables
			l.tracker.Upsert(limitsSource, zoned("a", "near"))
			l.tracker.Upsert(limitsSource, zoned("b", "near"))
			l.tracker.Upsert(limitsSource, at(taken, 2))
			f := l.large(service)
			before := slices.Clone(f.members)
			c.change(l)
			l.compile()
			if slices.Equal(f.members, before) {
				t.Fatal("no endpoint has changed")
			}
			if f.merged.spare != nil {
				t.Error("the endpoints were not read again")
			}
			l.tracker.Upsert(limitsSource, hinted(wideSlice(service, 2, 1, 99)))
			l.compile()
			if f.merged.spare == nil {
				t.Error("a change of one slice reads all endpoints again")
			}
		})
	}
}

// large adds a Service whose endpoints are kept, and returns them.
func (l *limited) large(name string) *familySet {
	l.t.Helper()
	l.tracker.Upsert(limitsSource, wide(name, name[0], 1, 1))
	for n := range minKept/100 + 1 {
		l.tracker.Upsert(limitsSource, hinted(wideSlice(name, byte(n+1), 1, 100)))
	}
	l.compile()
	return &l.units.byKey[unitKey{"n", name}].ports[0].families[0]
}

// TestClaimedEndpoint: when a Service is reached at an endpoint's address and port, or no longer,
// only that endpoint of a large Service is read again. Without it a cheap change costs as much as
// all endpoints of all large Services that list the address.
func TestClaimedEndpoint(t *testing.T) {
	const taken = "10.1.0.5"
	l := newLimited(t, Config{NodeName: "a", Scheduler: services.RoundRobin})
	x, y := l.large("x"), l.large("y")
	all := len(x.members)
	claim := func(port int32) {
		s := at(taken, port)
		s.Name = "z"
		l.tracker.Upsert(limitsSource, s)
	}
	for _, port := range []int32{1, 2} { // endpoints have port 1
		want := all
		if port == 1 {
			want--
		}
		claim(port)
		l.compile()
		if len(x.members) != want || len(y.members) != want {
			t.Errorf("a Service is reached at port %d: %d and %d endpoints, want %d", port, len(x.members),
				len(y.members), want)
		}
		if x.merged.spare == nil || y.merged.spare == nil {
			t.Error("all endpoints were read again")
		}
	}

	// One Service in each compile; one that waits loses the slice of the endpoint.
	l.contest.turn = 1
	claim(1)
	l.Compile(l.tracker.Changes())
	if len(x.members)+len(y.members) != 2*all-1 || !l.StaleEndpoints() {
		t.Fatalf("%d and %d of %d endpoints in the first of two compiles", len(x.members), len(y.members), all)
	}
	for _, name := range []string{"x", "y"} {
		l.tracker.Delete(limitsSource, objects.MakeObjectID(objects.KindEndpointSlice, "n", name+"-1"))
	}
	l.compile()
	if len(x.members) != all-100 || len(y.members) != all-100 || l.StaleEndpoints() {
		t.Errorf("%d and %d endpoints, want %d", len(x.members), len(y.members), all-100)
	}
}

// TestClaimedEndpointsTakeTurns: a thousand Services have an endpoint where another one is reached.
func TestClaimedEndpointsTakeTurns(t *testing.T) {
	const n = 1000
	l := newLimited(t, Config{NodeName: "a", Scheduler: services.RoundRobin})
	for i := range n {
		name := fmt.Sprint("s", i)
		s := wide(name, 0, 1, 1)
		s.Spec.ClusterIP = fmt.Sprintf("10.97.%d.%d", i>>8, i&255)
		l.tracker.Upsert(limitsSource, s)
		l.tracker.Upsert(limitsSource, wideSlice(name, 1, 1, 2))
	}
	l.Compile(l.tracker.Changes())
	l.DeferEndpoints(true)
	l.tracker.Upsert(limitsSource, at("10.1.0.1", 1))
	before, most, turns := n, 0, 0
	for l.Compile(l.tracker.Changes()); ; l.Compile(&objects.Changes{}) {
		most, before = max(most, before-len(l.contest.behind)), len(l.contest.behind)
		if turns++; !l.StaleEndpoints() {
			break
		}
	}
	t.Logf("%d Services in %d turns, %d at most", n, turns, most)
	if most > turnEndpoints/leastBehind {
		t.Errorf("one compile evaluated endpoints of %d Services, want %d at most", most, turnEndpoints/leastBehind)
	}
	l.compile()
}

// at is a Service that is reached at an address and port.
func at(addr string, port int32) *corev1.Service {
	s := wide("y", 2, 1, 1)
	s.Spec.ClusterIP, s.Spec.Ports[0].Port = addr, port
	return s
}

// zoned is a Node in a zone.
func zoned(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

// hinted puts the endpoints of a slice on node a, for zone near.
func hinted(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	node := "a"
	for i := range s.Endpoints {
		s.Endpoints[i].NodeName = &node
		s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "near"}}}
	}
	return s
}
