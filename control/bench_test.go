package control_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/fastpath/services"
)

const (
	clusterServices  = 10_000
	serviceEndpoints = 10
)

// cluster is 10,000 Services of a VIP and a node port with 10 endpoints each.
func cluster() *control.Tracker {
	t := control.NewTracker()
	var b control.Batch
	for i := range clusterServices {
		b.Upsert(control.Source{Kind: "bench"}, benchService(i))
		b.Upsert(control.Source{Kind: "bench"}, benchSlice(i, 0))
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

// benchSlice differs in one endpoint by version.
func benchSlice(i, version int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name = "bench", fmt.Sprintf("service-%d-x", i)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)}
	name, port := "http", int32(8080)
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
	for e := range serviceEndpoints {
		if e == 3 {
			e = 100 + version%97
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, e)}})
	}
	return s
}

func BenchmarkFullBuild(b *testing.B) {
	t := cluster()
	changes := t.Changes()
	b.ReportAllocs()
	var s *services.Snapshot
	for b.Loop() {
		s, _, _ = control.NewCompiler(testConfig()).Compile(changes)
	}
	runtime.KeepAlive(s)
}

// BenchmarkOneEndpoint is what one changed endpoint costs among 10,000 Services,
// without reading it: from Changes to Snapshot.
func BenchmarkOneEndpoint(b *testing.B) {
	t := cluster()
	c := control.NewCompiler(testConfig())
	c.Compile(t.Changes())
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		t.Upsert(control.Source{Kind: "bench"}, benchSlice(n*7919%clusterServices, n))
		changes := t.Changes()
		b.StartTimer()
		s, _, _ := c.Compile(changes)
		c.Release(s.Generation)
	}
}

// TestMemory holds the compiled table to its bound: 64 MiB of Maglev tables.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 10,000 services")
	}
	tracker := cluster()
	changes := tracker.Changes()
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
	t.Logf("%d services of %d endpoints: Maglev tables %.1f MiB, compiler and snapshot %.1f MiB in %d objects",
		clusterServices, serviceEndpoints, mib(tables), mib(int(after.HeapAlloc-before.HeapAlloc)), after.HeapObjects-before.HeapObjects)
	if len(sets) != clusterServices || tables > 64<<20 {
		t.Errorf("%d sets, tables of %.1f MiB", len(sets), mib(tables))
	}
	runtime.KeepAlive(c)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }
