package compiler

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sluice.dev/sluice/control/tracker"
)

// BenchmarkDirectChange compiles a change of one endpoint of a direct Service, and of a translated
// one with as many endpoints as there are Nodes.
func BenchmarkDirectChange(b *testing.B) {
	for _, nodes := range []int{100, 5000} {
		for _, direct := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/direct=%v", nodes, direct), func(b *testing.B) {
				l := &limited{New(Config{ClusterIPs: true, TunnelPort: 4789}), nil, tracker.New()}
				l.upsertNodes(nodes)
				s := directWide("d", 1, 1)
				if !direct {
					s.Annotations, s.Spec.ExternalTrafficPolicy = nil, ""
				}
				l.tracker.Upsert(limitsSource, s)
				for net := range byte(50) {
					l.tracker.Upsert(limitsSource, endpointsOn(net, nodes, true))
				}
				snap, _, _ := l.Compile(l.tracker.Changes())
				l.Release(snap.Generation)
				for i := 0; b.Loop(); i++ {
					l.tracker.Upsert(limitsSource, endpointsOn(7, nodes, i%2 == 0))
					snap, _, _ := l.Compile(l.tracker.Changes())
					l.Release(snap.Generation)
				}
			})
		}
	}
}

func endpointsOn(net byte, nodes int, ready bool) *discoveryv1.EndpointSlice {
	s := wideSlice("d", net, 1, max(1, nodes/50))
	for i := range s.Endpoints {
		name := fmt.Sprint("node-", int(net)*len(s.Endpoints)+i)
		s.Endpoints[i].NodeName = &name
		if i == 0 {
			s.Endpoints[i].Conditions.Ready = &ready
		}
	}
	return s
}
