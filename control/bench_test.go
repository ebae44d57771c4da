package control_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// shape is a cluster of Services with a VIP and a node port each, and their endpoints.
type shape struct{ services, endpoints int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// large is what one gateway must carry.
var large = shape{10_000, 10}

// perSlice is how many endpoints the EndpointSlice controller puts into one slice
// (kube-controller-manager --max-endpoints-per-slice).
const perSlice = 100

var benchSource = control.Source{Kind: "bench"}

// tracker has read all of it.
func (s shape) tracker() *control.Tracker {
	t := control.NewTracker()
	var b control.Batch
	for i := range s.services {
		b.Upsert(benchSource, benchService(i))
		for n := 0; n*perSlice < s.endpoints; n++ {
			b.Upsert(benchSource, s.slice(i, n, 0))
		}
	}
	t.Apply(&b)
	return t
}

func benchService(i int) *corev1.Service {
	s := &corev1.Service{}
	s.Namespace, s.Name = "bench", fmt.Sprintf("service-%d", i)
	s.Spec.Type, s.Spec.IPFamilies = corev1.ServiceTypeLoadBalancer, []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, NodePort: int32(20_000 + i)}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.%d.%d.1", i>>8, i&255)}}
	return s
}

// benchSlice is the only slice of a Service with ten endpoints.
func benchSlice(i, version int) *discoveryv1.EndpointSlice { return large.slice(i, 0, version) }

// slice is the n-th slice of a Service. It differs in one endpoint by version.
func (s shape) slice(i, n, version int) *discoveryv1.EndpointSlice {
	e := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	e.Namespace, e.Name = "bench", fmt.Sprintf("service-%d-x", i)
	if n > 0 {
		e.Name += fmt.Sprint(n)
	}
	e.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)}
	name, port := "http", int32(8080)
	e.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
	for k := n * perSlice; k < min((n+1)*perSlice, s.endpoints); k++ {
		pod := i*s.endpoints + k
		if k == 3 {
			pod = 1<<23 + i*128 + version%97
		}
		e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", pod>>16, pod>>8&255, pod&255)}})
	}
	return e
}

// table is a compiler with a worker behind it that is always up to date.
type table struct {
	tracker   *control.Tracker
	compiler  *control.Compiler
	publisher *control.Publisher
	handle    services.Handle
	worker    stats.Block
}

func newTable(tracker *control.Tracker) *table {
	t := &table{tracker: tracker, compiler: control.NewCompiler(testConfig())}
	t.worker.Generation.Store(stats.Offline)
	t.publisher = control.NewPublisher(&t.handle, []*stats.Block{&t.worker})
	return t
}

// pass takes in what the tracker has read.
func (t *table) pass() {
	t.compiler.Release(t.publisher.Oldest())
	s, _, _ := t.compiler.Compile(t.tracker.Changes())
	t.publisher.Publish(s)
}

// BenchmarkScaleFirst is the first table of a cluster whose objects are all read.
func BenchmarkScaleFirst(b *testing.B) {
	for _, s := range []shape{large, {5_000, 6}, {1, 5_000}} {
		b.Run(s.String(), func(b *testing.B) {
			tracker := s.tracker()
			changes := tracker.Changes()
			b.ReportAllocs()
			for b.Loop() {
				t := newTable(tracker)
				snapshot, _, _ := t.compiler.Compile(changes)
				t.publisher.Publish(snapshot)
			}
		})
	}
}

// BenchmarkScaleChange is one changed endpoint, from what was read of it to the table
// that workers use. Beside each small cluster stands one with 1,000 times the Services.
func BenchmarkScaleChange(b *testing.B) {
	for _, s := range []shape{{10, 10}, large, {1, 100}, {1_000, 100}, {1, 5_000}} {
		b.Run(s.String(), func(b *testing.B) {
			t := newTable(s.tracker())
			t.pass()
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				n++
				var batch control.Batch
				batch.Upsert(benchSource, s.slice(n*7919%s.services, 0, n))
				b.StartTimer()
				t.tracker.Apply(&batch)
				t.pass()
			}
		})
	}
}

// BenchmarkScaleSelfCheck is one check of a few of 10,000 services against a table made
// from nothing.
func BenchmarkScaleSelfCheck(b *testing.B) {
	t := newTable(large.tracker())
	t.pass()
	b.ReportAllocs()
	for b.Loop() {
		if d := t.compiler.CheckSome(t.tracker); d != "" {
			b.Fatal(d)
		}
	}
}

// TestMemory holds the compiled table to its bound: 64 MiB of tables over backends.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 10,000 services")
	}
	changes := large.tracker().Changes()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := control.NewCompiler(testConfig())
	s, _, _ := c.Compile(changes)
	runtime.GC()
	runtime.ReadMemStats(&after)
	tables, sets := 0, map[*services.EndpointSet]bool{}
	s.Frontends(func(f *services.Frontend) bool {
		if !sets[f.Outside.Set] {
			sets[f.Outside.Set] = true
			tables += 2 * cap(f.Outside.Set.Table)
		}
		return true
	})
	t.Logf("%v: tables over backends %.1f MiB, compiler and snapshot %.1f MiB in %d objects",
		large, mib(tables), mib(int(after.HeapAlloc-before.HeapAlloc)), after.HeapObjects-before.HeapObjects)
	if len(sets) != large.services || tables > 64<<20 {
		t.Errorf("%d sets, tables of %.1f MiB", len(sets), mib(tables))
	}
	runtime.KeepAlive(c)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }
