package compiler

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		{"a Service is reached at an endpoint's address and port", func(l *limited) {
			l.tracker.Upsert(limitsSource, at(taken, 1))
		}},
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
			l.tracker.Upsert(limitsSource, wide(service, 1, 1, 1))
			for n := range minKept/100 + 1 {
				l.tracker.Upsert(limitsSource, hinted(wideSlice(service, byte(n+1), 1, 100)))
			}
			l.compile()
			f := &l.units.byKey[unitKey{"n", service}].ports[0].families[0]
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
