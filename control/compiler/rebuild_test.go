package compiler

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// ref is the number of the endpoint 10.0.0.last of the world's one port.
func (w *pinWorld) ref(last byte) services.BackendRef {
	for _, m := range w.c.units.byKey[unitKey{"default", "web"}].ports[0].families[0].members {
		if m.addr == header.AddrFrom4([4]byte{10, 0, 0, last}) {
			return m.ref
		}
	}
	return 0
}

// TestRebuildKeepsIndexes: after a rebuild watchers are still called: for numbers that waited, for
// changes by the repair itself, and for later ones. No number that the repair freed is in use
// twice.
func TestRebuildKeepsIndexes(t *testing.T) {
	w := newPinWorld("ClientIP")
	var reported []byte
	w.c.WatchPins(func(l []LostPin) {
		for _, p := range l {
			reported = append(reported, p.Addr[15])
		}
	})
	busy := 0
	w.c.WatchFlows(func(services.BackendRef) bool { busy++; return false })
	w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	w.c.Release(w.compile())
	before, gone := w.ref(1), w.ref(3)
	w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")
	w.compile() // 4 is still to be reported
	w.endpoints("10.0.0.1", "10.0.0.2")
	w.t.Upsert(objects.Source{Kind: "test"}, w.slice)
	w.t.Changes() // 3 went, and the compiler missed it
	w.c.Rebuild(w.t.State())
	w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")
	w.compile()
	if w.ref(1) != before || w.ref(3) == gone {
		t.Errorf("numbers %v and %v; want %v, which lives on, and another than %v, which was given back", w.ref(1),
			w.ref(3), before, gone)
	}
	w.endpoints("10.0.0.1", "10.0.0.3")
	s, _, _ := w.c.Compile(func() *objects.Changes {
		w.t.Upsert(objects.Source{Kind: "test"},
			w.slice)
		return w.t.Changes()
	}())
	w.c.Release(s.Generation)
	if slices.Sort(reported); !slices.Equal(reported, []byte{2, 4}) { // 3 is back, so clients keep it
		t.Errorf("reported %v, want 2 and 4", reported)
	}
	if busy == 0 {
		t.Error("flows are not checked any more")
	}
}

// TestRebuildLosesPins: backends that the repair itself takes from new flows are reported.
func TestRebuildLosesPins(t *testing.T) {
	w := newPinWorld("ClientIP")
	reported := 0
	w.c.WatchPins(func(l []LostPin) { reported += len(l) })
	w.endpoints("10.0.0.1", "10.0.0.2")
	w.c.Release(w.compile())
	w.endpoints("10.0.0.1")
	w.t.Upsert(objects.Source{Kind: "test"}, w.slice)
	w.t.Changes()
	s, _, _ := w.c.Rebuild(w.t.State())
	w.c.Release(s.Generation)
	if reported != 1 {
		t.Errorf("reported %d lost pins, want 1", reported)
	}
	w.service.Spec.SessionAffinity = corev1.ServiceAffinityNone
	w.t.Upsert(objects.Source{Kind: "test"}, w.service)
	w.t.Changes()
	s, _, _ = w.c.Rebuild(w.t.State())
	w.c.Release(s.Generation)
	if reported < 2 {
		t.Error("no report that the Service has no affinity any more")
	}
}

// TestRebuildKeepsPinsOfReadmittedEndpoint: an endpoint that takes new flows again after the repair
// is not reported as lost.
func TestRebuildKeepsPinsOfReadmittedEndpoint(t *testing.T) {
	w := newPinWorld("ClientIP")
	w.c.WatchPins(func(l []LostPin) { t.Errorf("reported %v", l) })
	w.endpoints("10.0.0.1", "10.0.0.2")
	w.c.Release(w.compile())
	w.endpoints("10.0.0.1")
	w.compile() // 2 is still to be reported
	w.endpoints("10.0.0.1", "10.0.0.2")
	w.t.Upsert(objects.Source{Kind: "test"}, w.slice)
	w.t.Changes()
	s, _, _ := w.c.Rebuild(w.t.State())
	w.c.Release(s.Generation)
}

// TestHealthCheckIgnoresWeightZero: an endpoint of weight 0 does not count.
func TestHealthCheckIgnoresWeightZero(t *testing.T) {
	w := newPinWorld("None")
	w.c.cfg.NodeName = "gw"
	w.service.Spec.Type, w.service.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
	w.service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	w.endpoints("10.0.0.1", "10.0.0.2")
	name := "gw"
	for i := range w.slice.Endpoints {
		w.slice.Endpoints[i].NodeName = &name
	}
	for text, want := range map[string]int{"": 2, "10.0.0.1=0": 1, "node:gw=0": 0} {
		w.weights(text)
		w.compile()
		if h := w.c.HealthChecks(); len(h) != 1 || h[0].Local4 != want {
			t.Errorf("weights %q: %+v, want %d endpoints", text, h, want)
		}
	}
}
