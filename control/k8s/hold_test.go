package k8s

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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
	"sluice.dev/sluice/test/bed/machine"
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
				if n := s.held(); n != 0 || s.waits() != 0 {
					t.Errorf("%d problems and %d slices that wait at the end", n, s.waits())
				}
				s.stop()
			})
		})
	}
}

// waits counts the slices that wait.
func (s *stage) waits() (n int) {
	s.queue.All(func(*heldSlice) { n++ })
	return n
}

// mustCount fails the test if the counts of a Service differ from a count of its slices.
func (s *stage) mustCount() {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := 0
	for n, service := range s.services {
		want := heldService{slices: service.slices, endpoints: map[string]endpoint{}}
		for _, slice := range service.slices {
			want.countGiven(slice.given, +1)
			want.countNewest(slice.newest(), +1)
		}
		want.sum = evidence{}
		for _, e := range want.endpoints {
			want.sum.add(e, +1)
		}
		if service.sum != want.sum || !maps.Equal(service.endpoints, want.endpoints) || len(service.changed) > 0 {
			s.t.Fatalf("%v: counted %+v %v, want %+v %v, with %d to review", n, service.sum, service.endpoints,
				want.sum, want.endpoints, len(service.changed))
		}
		former := map[string]int{}
		for id, slice := range service.slices {
			if (slice.waiting != nil) != service.waiting[slice] || slice.waiting != nil && !want.vanished(slice) {
				s.t.Fatalf("slice %v waits %v, and vanished %v", id, service.waiting[slice], want.vanished(slice))
			}
			if slice.waiting == nil {
				continue
			}
			waits++
			for _, p := range slice.given {
				former[p.address]++
				if !slices.Contains(service.former[p.address], slice) || !p.ready && !want.lists(p) {
					s.t.Fatalf("slice %v, which waits, has %v", id, p)
				}
			}
		}
		if len(service.former) != len(former) {
			s.t.Fatalf("%v has %d former addresses, want %d", n, len(service.former), len(former))
		}
	}
	if n := s.waits(); n != waits {
		s.t.Fatalf("%d slices wait, want %d", n, waits)
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

// TestHeldServicesTakeTurns: the changes of two Services that are held until the same time are not
// returned together.
func TestHeldServicesTakeTurns(t *testing.T) {
	const period = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := newStage(period)
		var slices []runtime.Object
		for _, name := range []string{"a", "b"} {
			service, slice := testService(), testSlice(name, "1", "2")
			service.Name, slice.Labels[discoveryv1.LabelServiceName] = name, name
			s.set(service, slice)
			slices = append(slices, slice)
		}
		s.changes()
		s.gone(slices...)
		time.Sleep(period)
		synctest.Wait()
		for range 2 {
			if n := s.tracker.ChangesWithin(1).Len(); n != 1 {
				t.Errorf("%d changes are returned together, want 1", n)
			}
		}
		s.stop()
	})
}

// TestHoldCostsASlice: an event costs as much as its slice, however many slices the Service has.
func TestHoldCostsASlice(t *testing.T) {
	const events = 50
	var slice *discoveryv1.EndpointSlice
	for _, tt := range []struct {
		name         string
		exists, held bool
		event        func(*stage, int)
	}{
		{"a slice", true, false, func(s *stage, i int) {
			ready := i%2 != 0
			slice.Endpoints[7].Conditions.Ready = &ready
			s.set(slice)
		}},
		{"a slice without a Service", false, false, func(s *stage, _ int) { s.set(slice) }},
		{"the Service", true, false, func(s *stage, _ int) { s.set(testService()) }},
		{"a slice while all wait", true, true, func(s *stage, _ int) { s.gone(slice) }},
		{"the Service while all wait", true, true, func(s *stage, _ int) { s.set(testService()) }},
	} {
		cost := func(n int) time.Duration {
			s := &stage{hold: newHold(func(*tracker.Batch) {}, time.Hour)}
			defer s.stop()
			if tt.exists {
				s.set(testService())
			}
			var all []runtime.Object
			for i := range n {
				slice = testSlice(fmt.Sprint("s", i))
				for k := range 20 {
					slice.Endpoints = append(slice.Endpoints,
						discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, k)}})
				}
				all = append(all, slice)
			}
			s.set(all...)
			if tt.held {
				s.gone(all...)
			}
			best := time.Hour
			for i := range events {
				best = min(best, machine.CPUTime(func() { tt.event(s, i) }))
			}
			return best
		}
		few, many := cost(10), cost(1000)
		t.Logf("%s: %v among 10 slices of 20 endpoints, %v among 1,000", tt.name, few, many)
		if many > 5*few+50*time.Microsecond {
			t.Errorf("%s costs %v among 10 slices, and %v among 1,000", tt.name, few, many)
		}
	}
}

// After any changes, the last state of each object has been passed on, and nothing is remembered of
// deleted ones.
func TestHoldPassesOnTheLastState(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		s, truth := newStage(10*time.Second), map[objects.ObjectID]runtime.Object{}
		s.t = t
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
			s.mustCount()
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
		if len(s.services)+len(s.owner)+s.waits() != 0 {
			t.Errorf("remembered of nothing: %d Services, %d slices, %d that wait", len(s.services), len(s.owner),
				s.waits())
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
