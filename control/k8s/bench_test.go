package k8s_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s/k8stest"
)

// benchService and benchSlice are as an API server has them, with all that is trimmed.
func benchService(i int) *corev1.Service {
	s := service(fmt.Sprintf("service-%d", i), 80)
	s.Status.LoadBalancer.Ingress[0].IP = fmt.Sprintf("203.%d.%d.1", i>>8, i&255)
	s.ManagedFields, s.Spec.Selector = managed, map[string]string{"app": s.Name}
	return s
}

func benchSlice(i, endpoints, version int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%d", i)
	s := slice(name, name+"-x")
	s.ManagedFields = managed
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name}}
	yes := true
	for k := range endpoints {
		n, node, zone := i*endpoints+k+version%2, fmt.Sprintf("node-%d", (i+k)%100), "a"
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, k)},
		})
	}
	return s
}

var managed = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1",
	FieldsType: "FieldsV1",
	FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{},"f:selector":{}}}`)}}

func large(services, endpoints int) *k8stest.Server {
	s := k8stest.New()
	for i := range services {
		s.Set(benchService(i), benchSlice(i, endpoints, 0))
	}
	return s
}

// BenchmarkList is from nothing to everything in the Tracker, 10,000 Services of 10
// endpoints, and what is in memory then: heap of the feed and the Tracker by object.
func BenchmarkList(b *testing.B) {
	const services = benchServices
	s := large(services, benchEndpoints)
	if err := s.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Stop)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ReportAllocs()
	var w *world
	for b.Loop() {
		if w == nil { // the first alone is measured below; the others are as quick
			w = start(b, s)
			w.sync(b)
			continue
		}
		start(b, s).sync(b)
	}
	if b.N > 1 {
		return // several Watchers are in memory
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := float64(after.HeapAlloc - before.HeapAlloc)
	b.ReportMetric(heap/(2*services), "heapB/object")
	b.ReportMetric(heap/(1<<20), "heapMiB")
	runtime.KeepAlive(w)
}

// BenchmarkUpdates sends changed slices at 1,000 a second to 10,000 Services of 10
// endpoints: from the server's call until the Tracker has it, and until the table with it
// is published, over HTTP and JSON.
func BenchmarkUpdates(b *testing.B) {
	b.Run("read", func(b *testing.B) {
		w := startLarge(b)
		w.sync(b)
		for taken := false; !taken; {
			select {
			case <-w.tracker.Wake(): // of the lists
			default:
				taken = true
			}
		}
		update(b, w, func() { <-w.tracker.Wake() }) // nobody else takes it, and nothing else changes
	})
	b.Run("published", func(b *testing.B) {
		w := startLarge(b)
		loop, handle := w.loop(b)
		<-loop.Ready()
		last := handle.Load()
		update(b, w, func() {
			for handle.Load() == last {
				_, changed := loop.Problems()
				if handle.Load() == last {
					<-changed
				}
			}
			last = handle.Load()
		})
	})
}

const benchServices, benchEndpoints = 10_000, 10

func startLarge(b *testing.B) *world {
	b.Helper()
	s := large(benchServices, benchEndpoints)
	if err := s.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Stop)
	return start(b, s)
}

// update changes one slice after the other, and waits for each.
func update(b *testing.B, w *world, arrived func()) {
	const rate = 1000
	var late []time.Duration
	next, version := time.Now(), 0
	for b.Loop() {
		version++
		time.Sleep(time.Until(next))
		next = next.Add(time.Second / rate)
		// differs from the last round's
		changed := benchSlice(version*7919%benchServices, benchEndpoints, 1+version/benchServices)
		begin := time.Now()
		w.Set(changed)
		arrived()
		late = append(late, time.Since(begin))
	}
	slices.Sort(late)
	for name, share := range map[string]float64{"p50-µs": 0.5, "p99-µs": 0.99, "max-µs": 1} {
		b.ReportMetric(float64(late[min(int(share*float64(len(late))), len(late)-1)].Microseconds()), name)
	}
}
