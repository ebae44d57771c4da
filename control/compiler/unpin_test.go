package compiler

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/nat/header"
)

// TestLostPins: clients lose their pins to an endpoint that leaves every set of its service port,
// once every worker has left the snapshots that chose it, and not before. Pins of Services without
// affinity are not reported.
func TestLostPins(t *testing.T) {
	for _, c := range []struct {
		name, affinity string
		change         func(*pinWorld)
		want           []string
	}{
		{"removed", "ClientIP", func(w *pinWorld) { w.endpoints("10.0.0.1", "10.0.0.2") }, []string{"10.0.0.3"}},
		{"not ready", "ClientIP", func(w *pinWorld) { w.unready("10.0.0.2") }, []string{"10.0.0.2"}},
		{"weight", "ClientIP", func(w *pinWorld) { w.weights("10.0.0.1=0") }, []string{"10.0.0.1"}},
		{"the service", "ClientIP", func(w *pinWorld) { w.delete() }, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
		{"one more", "ClientIP", func(w *pinWorld) { w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4") },
			nil},
		{"no affinity", "None", func(w *pinWorld) { w.endpoints("10.0.0.1") }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newPinWorld(c.affinity)
			var lost []string
			w.c.WatchPins(func(list []LostPin) {
				for _, p := range list {
					if p.Service != serviceIdentity(unitKey{"default", "web"}, objects.ServicePort{Name: "http",
						Proto: header.ProtoTCP}) || p.Port != 8080 {
						t.Errorf("lost %+v", p)
					}
					lost = append(lost, p.Addr.String())
				}
			})
			w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")
			before := w.compile()
			c.change(w)
			after := w.compile()
			w.c.Release(before)
			if len(lost) > 0 {
				t.Errorf("%v while workers may still choose them", lost)
			}
			w.c.Release(after)
			w.c.Release(after)
			if slices.Sort(lost); !slices.Equal(lost, c.want) {
				t.Errorf("lost %v, want %v", lost, c.want)
			}
		})
	}
}

// TestPinsOfReturningEndpoint: an endpoint that is chosen again before its loss is reported keeps
// the clients that workers have pinned to it since; its second loss is reported.
func TestPinsOfReturningEndpoint(t *testing.T) {
	w := newPinWorld("ClientIP")
	lost := w.watch()
	w.endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")
	w.compile()
	w.endpoints("10.0.0.1")
	w.compile()
	w.endpoints("10.0.0.1", "10.0.0.3")
	w.c.Release(w.compile())
	if !slices.Equal(*lost, []string{"10.0.0.2"}) {
		t.Errorf("lost %v, want 10.0.0.2, which did not come back", *lost)
	}
	w.endpoints("10.0.0.1")
	w.c.Release(w.compile())
	if !slices.Equal(*lost, []string{"10.0.0.2", "10.0.0.3"}) {
		t.Errorf("lost %v, want 10.0.0.3 as well", *lost)
	}
	if len(w.c.lostPins.of) != 0 || len(w.c.lostPins.waiting) != 0 {
		t.Errorf("still waiting: %+v", w.c.lostPins)
	}
}

// TestNoLostPinsWithoutAffinity: pins of a service that loses its affinity are reported once, and
// changes of its endpoints later on are not reported.
func TestNoLostPinsWithoutAffinity(t *testing.T) {
	w := newPinWorld("ClientIP")
	lost := w.watch()
	w.endpoints("10.0.0.1", "10.0.0.2")
	w.compile()
	for _, affinity := range []corev1.ServiceAffinity{"None", "None", "ClientIP"} {
		w.service = w.service.DeepCopy()
		w.service.Spec.SessionAffinity = affinity
		w.service.Annotations["touch"] += "x"
		w.c.Release(w.compile())
	}
	if !slices.Equal(*lost, []string{"all"}) {
		t.Errorf("lost %v, want all, once", *lost)
	}
}

// watch notes who is lost.
func (w *pinWorld) watch() *[]string {
	lost := new([]string)
	w.c.WatchPins(func(list []LostPin) {
		for _, p := range list {
			if name := p.Addr.String(); p.Port != 0 {
				*lost = append(*lost, name)
			} else {
				*lost = append(*lost, "all")
			}
		}
	})
	return lost
}

// pinWorld is a Service with a VIP, and its endpoints.
type pinWorld struct {
	t       *tracker.Tracker
	c       *Compiler
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

func newPinWorld(affinity string) *pinWorld {
	port, name := int32(8080), "http"
	w := &pinWorld{
		t: tracker.New(), c: New(Config{}),
		service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{}},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.1"},
				SessionAffinity: corev1.ServiceAffinity(affinity),
				Ports:           []corev1.ServicePort{{Name: name, Port: 80}},
			},
		},
		slice: &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		},
	}
	return w
}

// compile returns the generation of the table.
func (w *pinWorld) compile() uint64 {
	if w.service != nil {
		w.t.Upsert(objects.Source{Kind: "test"}, w.service)
		w.t.Upsert(objects.Source{Kind: "test"}, w.slice)
	}
	s, _, _ := w.c.Compile(w.t.Changes())
	return s.Generation
}

func (w *pinWorld) endpoints(addrs ...string) {
	w.slice.Endpoints = nil
	for _, a := range addrs {
		w.slice.Endpoints = append(w.slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
}

func (w *pinWorld) unready(addr string) {
	no := false
	for i := range w.slice.Endpoints {
		if w.slice.Endpoints[i].Addresses[0] == addr {
			w.slice.Endpoints[i].Conditions.Ready = &no
		}
	}
}

func (w *pinWorld) weights(text string) { w.service.Annotations["sluice.dev/weights"] = text }

func (w *pinWorld) delete() {
	w.t.Delete(objects.Source{Kind: "test"}, objects.ObjectID{Kind: objects.KindService, Namespace: "default",
		Name: "web"})
	w.service = nil
}
