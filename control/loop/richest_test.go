package loop_test

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/tracker"
)

// richService has all that takes time to compile: two sets that differ, hints, weights, source
// ranges, three kinds of frontends.
func richService() *corev1.Service {
	s := controltest.Service(0)
	s.Spec.ClusterIPs = []string{"10.96.0.1"}
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "198.51.100.0/24"}
	s.Annotations = map[string]string{"sluice.dev/weights": "10.0.0.1=2,10.0.0.2=3,node:gw-2=5,zone:b=7"}
	return s
}

func richSlice(version int) *discoveryv1.EndpointSlice {
	s := (controltest.Cluster{Services: 1, Endpoints: 100}).Slice(0, 0, version)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node, zone := fmt.Sprintf("gw-%d", 1+i%2), []string{"a", "b"}[i%2]
		e.NodeName, e.Zone = &node, &zone
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	return s
}

// BenchmarkScaleRichest is one changed endpoint of a Service of 100 that uses everything.
func BenchmarkScaleRichest(b *testing.B) {
	tracker := tracker.New()
	tracker.Upsert(controltest.Source, richService())
	node := &corev1.Node{}
	node.Name, node.Labels = "gw-1", map[string]string{corev1.LabelTopologyZone: "b"}
	tracker.Upsert(controltest.Source, node)
	t := newTable(tracker)
	cfg := controltest.Config()
	cfg.ClusterIPs, cfg.ClusterCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	t.compiler.Configure(cfg)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		t.tracker.Upsert(controltest.Source, richSlice(n))
		t.pass()
	}
}
