package k8s

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// stage is a hold with a Tracker behind it, and what went through.
type stage struct {
	*hold
	tracker *tracker.Tracker
	t       *testing.T
	counted int // changes that were applied and not read
}

var testSource = objects.Source{Kind: Kind, Path: "endpointslices"}

func newStage(period time.Duration) *stage {
	s := &stage{tracker: tracker.New()}
	s.hold = newHold(s.tracker.Apply, period)
	return s
}

func (s *stage) set(objects ...runtime.Object) {
	var changes []change
	for _, o := range objects {
		id, _, _ := idOf(o)
		changes = append(changes, change{id: id, object: o})
	}
	s.apply(testSource, changes)
}

func (s *stage) gone(objects ...runtime.Object) {
	var changes []change
	for _, o := range objects {
		id, _, _ := idOf(o)
		changes = append(changes, change{id: id})
	}
	s.apply(testSource, changes)
}

// mustHave fails unless the Tracker has slices as they are here.
func (s *stage) mustHave(slices ...*discoveryv1.EndpointSlice) {
	s.t.Helper()
	s.counted += s.tracker.Changes().Len()
	for _, o := range slices {
		s.tracker.Upsert(testSource, o)
		if s.tracker.Changes().Len() != 0 {
			s.t.Errorf("slice %s is not as it should be: %v", o.Name, o.Endpoints)
		}
	}
}

func (s *stage) changes() (n int) {
	n, s.counted = s.counted+s.tracker.Changes().Len(), 0
	return n
}

func testService() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
}

// testSlice has endpoints by name: "1" is ready, "-1" terminating, "!1" not ready. It is
// of IPv6 if its name ends so.
func testSlice(name string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	prefix := "10.0.0."
	if strings.HasSuffix(name, "6") {
		s.AddressType, prefix = discoveryv1.AddressTypeIPv6, "fd00::"
	}
	yes, no := true, false
	for _, e := range endpoints {
		var c discoveryv1.EndpointConditions
		switch e[0] {
		case '-':
			c, e = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}, e[1:]
		case '!':
			c, e = discoveryv1.EndpointConditions{Ready: &no}, e[1:]
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{prefix + e}, Conditions: c})
	}
	return s
}

func TestHold(t *testing.T) {
	const period = 30 * time.Second
	one, two, six := testSlice("x", "1", "2"), testSlice("y", "3"), testSlice("x6", "1")
	cases := []struct {
		name string
		do   func(*stage)
		// now, afterGather, afterHold are the slices that go through at once, a second
		// later, and after the period.
		now, afterGather, afterHold int
	}{
		{"one of a slice vanishes", func(s *stage) { s.set(testSlice("x", "1")) }, 1, 0, 0},
		{"a slice vanishes, others stay", func(s *stage) { s.gone(one) }, 0, 1, 0},
		{"all vanish, slice by slice", func(s *stage) { s.gone(one); s.gone(two) }, 0, 0, 2},
		{"all are emptied, slice by slice", func(s *stage) { s.set(testSlice("x")); s.set(testSlice("y")) }, 0, 0, 2},
		{"all vanish in one list", func(s *stage) { s.gone(one, two) }, 0, 0, 2},
		{"all vanish and come back", func(s *stage) { s.gone(one, two); s.set(one, two) }, 0, 0, 0},
		{"all vanish, one slice comes back", func(s *stage) { s.gone(one, two); s.set(two) }, 1, 0, 0},
		{"all vanish, one endpoint comes back in another slice",
			func(s *stage) { s.gone(one, two); s.set(testSlice("z", "2")) }, 3, 0, 0},
		{"all vanish, one comes back not ready", func(s *stage) { s.gone(one, two); s.set(testSlice("y", "!3")) }, 2, 0,
			0},
		{"all vanish, a new one is not ready yet", func(s *stage) { s.gone(one, two); s.set(testSlice("z", "!9")) }, 1,
			0, 2},
		{"all of IPv4 vanish, IPv6 stays", func(s *stage) { s.set(six); s.changes(); s.gone(one, two) }, 0, 0, 2},
		{"all of IPv4 vanish, a new one of IPv6 comes", func(s *stage) { s.gone(one, two); s.set(six) }, 1, 0, 2},
		{"all of both families vanish", func(s *stage) { s.set(six); s.changes(); s.gone(one, two, six) }, 0, 0, 3},
		{"a slice that was terminating vanishes with the others", func(s *stage) {
			s.set(testSlice("x", "-1", "-2"))
			s.changes()
			s.gone(one, two)
		}, 1, 0, 1},
		{"the same, slice by slice", func(s *stage) {
			s.set(testSlice("x", "-1", "-2"))
			s.changes()
			s.gone(two)
			s.gone(one)
		}, 1, 0, 1},
		{"one that was terminating vanishes with the others of its slice", func(s *stage) {
			s.set(testSlice("x", "-1", "2"))
			s.changes()
			s.gone(one, two)
			s.mustHave(testSlice("x", "2"), two)
		}, 1, 0, 2},
		{"the same, others of another slice stay", func(s *stage) {
			s.set(testSlice("x", "-1", "2"))
			s.changes()
			s.gone(one)
			s.mustHave(testSlice("x", "2"), two)
		}, 1, 1, 0},
		{"the same, it is still terminating", func(s *stage) {
			s.set(testSlice("x", "-1", "2"))
			s.changes()
			s.gone(two)
			s.set(testSlice("x", "-1"))
			s.mustHave(testSlice("x", "-1", "2"))
		}, 0, 0, 2},
		{"one of two that are terminating vanishes", func(s *stage) {
			s.set(testSlice("x", "-1", "-2", "4"))
			s.changes()
			s.gone(two)
			s.set(testSlice("z", "-2"))
			s.gone(one)
			s.mustHave(testSlice("x", "-2", "4"), two)
		}, 2, 0, 2},
		{"all vanish, another pod comes", func(s *stage) { s.gone(one, two); s.set(testSlice("z", "9")) }, 3, 0, 0},
		{"all are terminating", func(s *stage) { s.set(testSlice("x", "-1", "-2"), testSlice("y", "-3")) }, 2, 0, 0},
		{"all were terminating and vanish", func(s *stage) {
			s.set(testSlice("x", "-1", "-2"), testSlice("y", "-3"))
			s.gone(one, two)
		}, 2, 0, 0},
		{"one terminates, then the last ready one vanishes",
			func(s *stage) { s.set(testSlice("x", "-1")); s.gone(two) }, 1, 0, 1},
		{"all are not ready", func(s *stage) { s.set(testSlice("x", "!1", "!2"), testSlice("y", "!3")) }, 2, 0, 0},
		{"held, then seen terminating", func(s *stage) { s.gone(one, two); s.set(testSlice("x", "-1", "-2")) }, 2, 0,
			0},
		{"other pods in one slice, then the old one's goes", func(s *stage) { s.set(testSlice("x", "7")); s.gone(two) },
			1, 1, 0},
		{"moved to another slice", func(s *stage) { s.set(testSlice("y", "1", "2", "3")); s.gone(one) }, 2, 0, 0},
		{"moved, the old slice goes first", func(s *stage) { s.gone(one); s.set(testSlice("y", "1", "2", "3")) }, 2, 0,
			0},
		{"the Service is deleted first", func(s *stage) { s.gone(testService()); s.gone(one, two) }, 3, 0, 0},
		{"the Service is deleted while held", func(s *stage) { s.gone(one, two); s.gone(testService()) }, 3, 0, 0},
		{"a slice leaves its Service", func(s *stage) {
			other := testSlice("x", "1", "2")
			other.Labels[discoveryv1.LabelServiceName] = "b"
			s.set(other)
		}, 1, 0, 0},
		{"a slice without a Service", func(s *stage) {
			none := testSlice("x", "1", "2")
			none.Labels = nil
			s.set(none)
			s.gone(two)
		}, 1, 0, 1},
		{"held twice", func(s *stage) {
			s.gone(one, two)
			time.Sleep(period - time.Second)
			s.gone(one)
			s.gone(two)
		}, 0, 2, 0},
		{"switched off", func(s *stage) { s.gone(one, two); s.setPeriod(0) }, 2, 0, 0},
		{"shortened", func(s *stage) { s.gone(one, two); s.setPeriod(gather) }, 0, 2, 0},
		{"shortened to what is over", func(s *stage) { s.gone(one, two); time.Sleep(gather); s.setPeriod(gather) }, 2,
			0, 0},
		{"lengthened", func(s *stage) { s.gone(one, two); s.setPeriod(time.Hour) }, 0, 0, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(period)
				s.t = t
				s.set(testService())
				s.set(one)
				s.set(two)
				s.changes()
				c.do(s)
				now := s.changes()
				held := s.held()
				time.Sleep(gather)
				synctest.Wait()
				afterGather := s.changes()
				time.Sleep(period)
				synctest.Wait()
				if afterHold := s.changes(); now != c.now || afterGather != c.afterGather || afterHold != c.afterHold {
					t.Errorf("%d changes at once, %d after %v, %d after %v more; want %d, %d and %d",
						now, afterGather, gather, afterHold, period, c.now, c.afterGather, c.afterHold)
				}
				families := 1 + strings.Count(c.name, "both families")
				if want := c.afterHold > 1 || c.name == "held twice"; want && held != families {
					t.Errorf("%d problems while it is held, want %d", held, families)
				}
				if n := s.held(); n != 0 || len(s.waiting) != 0 {
					t.Errorf("%d problems and %d Services that wait at the end", n, len(s.waiting))
				}
				s.stop()
			})
		})
	}
}

// held counts the problems about held Services.
func (s *stage) held() (n int) {
	for _, p := range s.tracker.Locate(nil) {
		if p.Why() == objects.ReasonEndpointsHeld {
			n++
		}
	}
	return n
}

// After any changes, the last state of each object has been passed on, and nothing is remembered of
// deleted ones.
func TestHoldPassesOnTheLastState(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		s, truth := newStage(10*time.Second), map[objects.ObjectID]runtime.Object{}
		names := []string{"x", "y", "z", "x6", "y6"}
		for range 5000 {
			var objects []runtime.Object
			switch r.IntN(8) {
			case 0:
				objects = append(objects, testService())
			default:
				objects = append(objects, testSlice(names[r.IntN(len(names))], someEndpoints(r)...))
			}
			deleted := r.IntN(3) == 0
			for _, o := range objects {
				id, _, _ := idOf(o)
				if truth[id] = o; deleted {
					truth[id] = nil
				}
			}
			if deleted {
				s.gone(objects...)
			} else {
				s.set(objects...)
			}
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s.changes()
		for id, o := range truth {
			if o == nil {
				s.tracker.Delete(testSource, id)
			} else {
				s.tracker.Upsert(testSource, o)
			}
		}
		if n := s.changes(); n != 0 {
			t.Errorf("%d objects are not what was said last", n)
		}
		s.gone(testService(), testSlice("x"), testSlice("y"), testSlice("z"), testSlice("x6"), testSlice("y6"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.services)+len(s.owner)+len(s.waiting) != 0 {
			t.Errorf("remembered of nothing: %d Services, %d slices, %d that wait", len(s.services), len(s.owner),
				len(s.waiting))
		}
		s.stop()
	})
}

func someEndpoints(r *rand.Rand) (list []string) {
	for range r.IntN(3) {
		list = append(list, []string{"", "", "-", "!"}[r.IntN(4)]+fmt.Sprint(1+r.IntN(4)))
	}
	return list
}
