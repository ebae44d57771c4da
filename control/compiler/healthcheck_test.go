package compiler_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

func TestHealthChecks(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name   string
		change func(*corev1.Service, *discoveryv1.EndpointSlice)
		want   []compiler.HealthCheck
	}{
		{"two of three are here, each with two ports", nil,
			[]compiler.HealthCheck{{Namespace: "bench", Name: "service-1", Port: 31000, V4: true, Local4: 2}}},
		{"one is not ready",
			func(_ *corev1.Service, e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = &no },
			[]compiler.HealthCheck{{Namespace: "bench", Name: "service-1", Port: 31000, V4: true, Local4: 1}}},
		{"terminating ones serve, and do not count", func(_ *corev1.Service, e *discoveryv1.EndpointSlice) {
			for i := range e.Endpoints {
				e.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
			}
		}, []compiler.HealthCheck{{Namespace: "bench", Name: "service-1", Port: 31000, V4: true}}},
		{"nothing is here", func(_ *corev1.Service, e *discoveryv1.EndpointSlice) { e.Endpoints = e.Endpoints[2:] },
			[]compiler.HealthCheck{{Namespace: "bench", Name: "service-1", Port: 31000, V4: true}}},
		{"policy Cluster", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}, nil},
		{"a node port only",
			func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Type = corev1.ServiceTypeNodePort }, nil},
		{"no such port", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.HealthCheckNodePort = 0 }, nil},
		{"another proxy's", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
		}, nil},
		{"dual stack", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}, []compiler.HealthCheck{{Namespace: "bench", Name: "service-1", Port: 31000, V4: true, V6: true, Local4: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker, compiler := tracker.New(), compiler.New(controltest.Config())
			s, e := controltest.LocalService(1, 31000, "gw-1", "gw-1", "gw-2")
			if c.change != nil {
				c.change(s, e)
			}
			tracker.Upsert(objects.Source{Kind: "test"}, s)
			tracker.Upsert(objects.Source{Kind: "test"}, e)
			compiler.Compile(tracker.Changes())
			if got := compiler.HealthChecks(); !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
