package loop_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// The Services of TestNamespacesTakeTurns whose changes are costly together: with 30,000 endpoints
// times ports each takes some milliseconds of a pass.
const (
	manyServices, manyPorts, manyEndpoints = 16, 100, 300
	manyEvery                              = 400 * time.Millisecond
)

// manySlice is the slice of such a Service; other endpoints are ready in each version.
func manySlice(service, version int) *discoveryv1.EndpointSlice {
	name := fmt.Sprint("many-", service)
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name, s.Labels = "many", name, map[string]string{discoveryv1.LabelServiceName: name}
	for k := range manyEndpoints {
		ready := (k+version)%7 != 0
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 100+service, k/250, 1+k%250)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	for k := range manyPorts {
		name, port, protocol := fmt.Sprint("p", k), int32(8080), corev1.ProtocolTCP
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	}
	return s
}

func manyService(service int) *corev1.Service {
	s := controltest.Service(0)
	s.Namespace, s.Name = "many", fmt.Sprint("many-", service)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("203.98.0.", service)}}
	s.Spec.ClusterIP, s.Spec.Ports = "", nil
	s.Spec.ClusterIPs = nil
	for k := range manyPorts {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", k), Port: int32(1000 + k),
			Protocol: corev1.ProtocolTCP})
	}
	return s
}

// TestNamespacesTakeTurns sends 200 changes a second to a running loop while another namespace
// changes 16 costly Services at once, again and again, and asks how long each of the others takes.
func TestNamespacesTakeTurns(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for ten seconds")
	}
	for try := 1; ; try++ {
		p99, late := latencyBesideMany(t)
		t.Logf("p99 of others: %v", p99)
		if size.Race || p99 <= slow(20*time.Millisecond)+2*late {
			return
		}
		if try == latencyTries {
			t.Fatalf("others wait %v (p99) beside 16 costly Services of another namespace, on a machine that wakes "+
				"sleepers up to %v late, in the last of %d tries", p99, late, try)
		}
	}
}

// latencyBesideMany is how long 99 in 100 changes took, without the time that this process waited
// for a CPU, and how late the latest sleeper woke.
func latencyBesideMany(t *testing.T) (p99, late time.Duration) {
	t.Helper()
	d := &delays{first: make(chan struct{})}
	table := newTable(few.Tracker())
	for i := range manyServices {
		table.tracker.Upsert(controltest.Source, manyService(i))
		table.tracker.Upsert(controltest.Source, manySlice(i, 0))
	}
	loop, stop := table.run(t, d)
	noise, used := oversleep(), usage(t)
	const perSecond, seconds = 200, 5
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	version := 0
	for start, sent := time.Now(), 0; sent < seconds*perSecond; <-tick.C {
		if n := int(time.Since(start) / manyEvery); n > version {
			version = n
			for i := range manyServices {
				table.tracker.Upsert(controltest.Source, manySlice(i, n))
			}
		}
		for due := int(time.Since(start).Seconds() * perSecond); sent < min(due, seconds*perSecond); sent++ {
			table.change(few, sent)
		}
	}
	if err := loop.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	slept, part := noise(), ran(t, used)
	stop()
	if len(d.all) != perSecond*seconds {
		t.Errorf("%d changes were sent, %d published", perSecond*seconds, len(d.all))
	}
	slices.Sort(d.all)
	slices.Sort(d.took)
	t.Logf("p50 %v, p99 %v, max %v; a pass p50 %v, p99 %v, max %v", quantile(d.all, 50), quantile(d.all, 99),
		d.all[len(d.all)-1], quantile(d.took, 50), quantile(d.took, 99), d.took[len(d.took)-1])
	return time.Duration(float64(quantile(d.all, 99)) * part), slept[len(slept)-1]
}

// TestStaleEndpointsFollow: 300 Services have an endpoint at which another one is reached then. One
// pass evaluates the endpoints of some of them, and the loop continues without further changes.
func TestStaleEndpointsFollow(t *testing.T) {
	const shared, port = "10.77.0.1", 8080
	d := &delays{first: make(chan struct{})}
	table := newTable(controltest.Cluster{Services: 300, Endpoints: 10}.Tracker())
	for i := range 300 {
		s := controltest.Slice(i, 0)
		s.Endpoints[0].Addresses[0], *s.Ports[0].Port = shared, port
		table.tracker.Upsert(controltest.Source, s)
	}
	l, stop := table.run(t, d)
	defer stop()
	claims := &corev1.Service{}
	claims.Namespace, claims.Name, claims.Spec.ExternalIPs = "bench", "claims", []string{shared}
	claims.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	claims.Spec.Ports = []corev1.ServicePort{{Port: port}}
	table.tracker.Upsert(controltest.Source, claims)
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, left := header.AddrFrom(netip.MustParseAddr(shared)), 0
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		left = 0
		table.handle.Load().Backends(func(b *services.Backend) bool {
			if b.Addr == at {
				left++
			}
			return true
		})
		if left == 0 {
			return
		}
	}
	t.Errorf("%d Services have the address of another one as an endpoint", left)
}
