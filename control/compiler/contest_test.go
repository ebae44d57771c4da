package compiler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// claimants returns n Services that claim one address and port. The first is the oldest.
func claimants(n int) (*tracker.Tracker, *compiler.Compiler) {
	tr, compiler := tracker.New(), compiler.New(compiler.Config{})
	var b tracker.Batch
	for i := range n {
		b.Upsert(controltest.Source, claimant(i))
	}
	tr.Apply(&b)
	compiler.Compile(tr.Changes())
	return tr, compiler
}

func claimant(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "contest", Name: fmt.Sprintf("s-%d", i),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0))}}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.ExternalIPs = []string{"192.0.2.1"}
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	return s
}

// TestChangeOfALoserIsCheap: a change of one of many Services that claim a frontend costs nothing
// for the others, unless another one wins the frontend.
func TestChangeOfALoserIsCheap(t *testing.T) {
	cost := func(n int) float64 {
		tracker, compiler := claimants(n)
		affinity := corev1.ServiceAffinityClientIP
		return testing.AllocsPerRun(10, func() {
			s := claimant(n / 2)
			s.Spec.SessionAffinity = affinity
			if affinity == corev1.ServiceAffinityNone {
				affinity = corev1.ServiceAffinityClientIP
			} else {
				affinity = corev1.ServiceAffinityNone
			}
			tracker.Upsert(controltest.Source, s)
			compiler.Compile(tracker.Changes())
		})
	}
	few, many := cost(50), cost(800)
	t.Logf("%v allocations among 50, %v among 800", few, many)
	if many > few+50 {
		t.Errorf("a change of one Service costs %v allocations where 50 claim its frontend, %v where 800 do", few, many)
	}
}

// TestChangeOfTheWinnerIsCheap: of the Services that claim a frontend, a compile builds the one
// that loses it and the one that gets it. The problems of the others follow in steps.
func TestChangeOfTheWinnerIsCheap(t *testing.T) {
	cost := func(n int) float64 {
		tracker, c := claimants(n)
		c.DeferProblems(true)
		first := objects.ObjectID{Kind: objects.KindService, Namespace: "contest", Name: "s-0"}
		there := true
		return testing.AllocsPerRun(10, func() {
			if there = !there; there {
				tracker.Upsert(controltest.Source, claimant(0))
			} else {
				tracker.Delete(controltest.Source, first)
			}
			c.Compile(tracker.Changes())
			if !c.StaleProblems() {
				t.Error("no problems are stale")
			}
		})
	}
	few, many := cost(50), cost(800)
	t.Logf("%v allocations among 50, %v among 800", few, many)
	if many > few+50 {
		t.Errorf("a change of the Service that has a frontend costs %v allocations where 50 claim it, %v where 800 do",
			few, many)
	}
}

// TestUnmovedClaimsAreNotContested: a change of something else than age, addresses and ports is no
// reason to compare a Service with all others that claim the same: 40 Services with 8,192 frontends
// took half a second of the loop for each change of one.
func TestUnmovedClaimsAreNotContested(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		want   int
	}{
		{"an annotation", func(s *corev1.Service) {
			s.Annotations = map[string]string{"sluice.dev/scheduler": "rr"}
		}, 0},
		{"the age", func(s *corev1.Service) { s.CreationTimestamp = metav1.NewTime(time.Unix(9, 0)) }, 2},
		{"a port", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }, 4},
		{"an address", func(s *corev1.Service) { s.Spec.ExternalIPs = nil }, 2},
	} {
		h := newHostileTenant(t)
		service := tenantService(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.66"} })
		h.tracker.Upsert(hostileSource, service)
		h.compile()
		tt.change(service)
		trimmed, malformed := objects.TrimService(service)
		if got := h.compiler.Contests(trimmed); got != tt.want || len(malformed) > 0 {
			t.Errorf("%s: %d frontends are contested, want %d %v", tt.name, got, tt.want, malformed)
		}
	}
}

// TestClaimsReachEndpoints: a claim of an endpoint's address and port matters to Services that may
// not have the endpoint then. A claim by external IP is nothing to other namespaces: to toggle it
// must not cost what their Services have.
func TestClaimsReachEndpoints(t *testing.T) {
	const endpoint, port = "100.64.77.1", 8080 // of good/plain
	external := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{endpoint} }
	for _, tt := range []struct {
		name, namespace string
		claim           func(*corev1.Service)
		want            []string
	}{
		{"external IP of another namespace", "tenant", external, nil},
		{"external IP of the same namespace", "good", external, []string{"good/plain"}},
		{"ClusterIP of another namespace", "tenant", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{endpoint} },
			[]string{"good/plain"}},
	} {
		for _, gone := range []bool{false, true} {
			h := newHostileTenant(t)
			service := tenantService(func(s *corev1.Service) {
				s.Namespace, s.Spec.Ports[0].Port = tt.namespace, port
				tt.claim(s)
			})
			if gone {
				h.tracker.Upsert(hostileSource, service)
				h.compile()
				service.Spec.Ports[0].Port++
			}
			trimmed, malformed := objects.TrimService(service)
			if got := h.compiler.Affected(trimmed); !slices.Equal(got, tt.want) || len(malformed) > 0 {
				t.Errorf("%s, gone %v: endpoints of %v are evaluated again, want %v %v", tt.name, gone, got, tt.want,
					malformed)
			}
		}
	}
}
