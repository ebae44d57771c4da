package loop_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/test/bed/machine"
)

// TestCostlyChange is the processor time that the loop's goroutine spends for a change of a Service
// of 65,000 endpoints with weights, and for putting a table of it into force: others wait as long.
// It is not wall time, which has what the machine does besides. The few longest changes are
// those that need new memory from the system.
//
//	go test ./control/loop -run TestCostlyChange -v
func TestCostlyChange(t *testing.T) {
	if testing.Short() {
		t.Skip("builds tables of 4 million slots")
	}
	table := newTable(few.Tracker())
	addCostly(table.tracker, "")
	table.pass()
	table.compiler.DeferTables(true)
	var changes, installs []time.Duration
	for n := range 201 {
		table.tracker.Upsert(controltest.Source, costlySlice(n*7919%costlySlices, n+1))
		changes = append(changes, machine.CPUTime(table.pass))
		if n%50 != 49 {
			continue
		}
		for j := table.compiler.NextTable(); j != nil; j = table.compiler.NextTable() {
			j.Build()
			installs = append(installs, machine.CPUTime(func() {
				s, _, _ := table.compiler.Install(j)
				table.publisher.Publish(s)
			}))
		}
	}
	slices.Sort(changes)
	slices.Sort(installs)
	t.Logf("a change: p50 %v, p90 %v, p99 %v, max %v; a table into force: p50 %v, max %v", quantile(changes, 50),
		quantile(changes, 90), quantile(changes, 99), quantile(changes, 100), quantile(installs, 50),
		quantile(installs, 100))
	if p90 := quantile(changes, 90); p90 > slow(10*time.Millisecond) {
		t.Errorf("a change takes %v (p90)", p90)
	}
	if len(installs) == 0 || quantile(installs, 100) > slow(10*time.Millisecond) {
		t.Errorf("putting a table into force takes up to %v", installs)
	}
}

// TestCostlyEndpointIsClaimed is the processor time of a pass after a cheap change: a Service
// claims, or gives up, the address and port of an endpoint that two costly Services list.
//
//	go test ./control/loop -run TestCostlyEndpointIsClaimed -v
func TestCostlyEndpointIsClaimed(t *testing.T) {
	if testing.Short() {
		t.Skip("builds tables of 4 million slots")
	}
	table := newTable(few.Tracker())
	table.compiler.DeferTables(true)
	table.compiler.DeferEndpoints(true)
	addCostly(table.tracker, "")
	addCostly(table.tracker, "-2")
	table.pass()
	endpoint := costlySlice(7, 0)
	address, port := endpoint.Endpoints[5].Addresses[0], *endpoint.Ports[0].Port
	for _, tt := range []struct {
		name, namespace string
		claim           func(*corev1.Service)
		most            time.Duration
	}{
		{"external IP of another namespace", "other",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{address} }, time.Millisecond},
		{"external IP of the same namespace", "costly",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{address} }, 10 * time.Millisecond},
		{"load balancer of another namespace", "other", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		}, 10 * time.Millisecond},
	} {
		var passes []time.Duration
		for n := range 100 {
			s := &corev1.Service{}
			s.Namespace, s.Name = tt.namespace, "claims"
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
			s.Spec.Ports = []corev1.ServicePort{{Port: port + int32(n%2)}}
			tt.claim(s)
			table.tracker.Upsert(controltest.Source, s)
			passes = append(passes, machine.CPUTime(table.pass))
			for table.compiler.StaleEndpoints() {
				passes = append(passes, machine.CPUTime(table.pass))
			}
		}
		slices.Sort(passes)
		p90 := quantile(passes, 90)
		t.Logf("%s: %d passes, p50 %v, p90 %v, max %v", tt.name, len(passes), quantile(passes, 50), p90,
			quantile(passes, 100))
		if p90 > slow(tt.most) {
			t.Errorf("%s: a pass takes %v (p90), want %v at most", tt.name, p90, tt.most)
		}
	}
}
