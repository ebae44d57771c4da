package loop_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/test/bed/machine"
)

const largestPorts = 100

// largestService has as many ports as a Service can have.
func largestService() *corev1.Service {
	s := controltest.Service(0)
	first := s.Spec.Ports[0]
	s.Spec.Ports = nil
	for i := range int32(largestPorts) {
		p := first
		p.Name, p.Port, p.NodePort = fmt.Sprint("p", i), 1+i, 0
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

// largestSlice has as many endpoints as a slice can have, with other addresses and conditions in
// each version.
func largestSlice(random *rand.Rand) *discoveryv1.EndpointSlice {
	s := (controltest.Cluster{Services: 1, Endpoints: 100}).Slice(0, 0, 0)
	port := s.Ports[0]
	s.Ports, s.Endpoints = nil, nil
	for i := range largestPorts {
		p, name := port, fmt.Sprint("p", i)
		p.Name = &name
		s.Ports = append(s.Ports, p)
	}
	for range 1000 {
		ready := random.IntN(4) > 0
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", random.IntN(256), 1+random.IntN(254))},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// BenchmarkScaleLargest is one change of all 1,000 endpoints of a Service of 100 ports: other
// addresses and conditions. ms/pass is the processor time of the control loop's goroutine.
func BenchmarkScaleLargest(b *testing.B) {
	table := newTable(tracker.New())
	table.tracker.Upsert(controltest.Source, largestService())
	table.compiler.DeferTables(true)
	table.compiler.DeferProblems(true)
	random := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	var passes float64
	for b.Loop() {
		b.StopTimer()
		table.tracker.Upsert(controltest.Source, largestSlice(random))
		b.StartTimer()
		passes += machine.CPUTime(table.pass).Seconds() * 1000
	}
	b.ReportMetric(passes/float64(b.N), "ms/pass")
}
