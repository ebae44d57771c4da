package compiler_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/fastpath/services"
)

// many is a Service of so many ports at some VIPs, and a slice of so many endpoints for each.
func many(ports, endpoints int, vips ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service := tenantService(func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1 + i)})
		}
		for _, ip := range vips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	})
	return service, tenantSlice(func(s *discoveryv1.EndpointSlice) {
		s.Ports, s.Endpoints = nil, nil
		for i := range ports {
			name, port := fmt.Sprint("p", i), int32(1000+i)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.66.%d", 1+i)}})
		}
	})
}

// TestFrontendsShareRanges: the source ranges of a Service are one set in memory, whatever number
// of frontends it has, and the same one after a change of something else. 1,000 frontends with
// 40,000 ranges took 2 GiB and 20 s of the loop, by one object of 680 KB.
func TestFrontendsShareRanges(t *testing.T) {
	h := newHostileTenant(t)
	service, slice := many(500, 1, "203.0.113.66", "203.0.113.67")
	for i := range 10_000 {
		service.Spec.LoadBalancerSourceRanges = append(service.Spec.LoadBalancerSourceRanges,
			fmt.Sprintf("198.51.%d.%d/32", i/250, i%250))
	}
	service.Spec.LoadBalancerSourceRanges[0] = "192.0.2.0/24" // has addresses of the node
	var first *services.Prefixes
	check := func() {
		t.Helper()
		sets, frontends := map[*services.Prefixes]bool{}, 0
		h.compiler.Snapshot().Frontends(func(f *services.Frontend) bool {
			if f.Service.Namespace != "tenant" || f.Kind != services.LoadBalancer {
				return true
			}
			frontends++
			common, also := f.Allowed.Parts()
			sets[common] = true
			if also.Addr() != f.Key.Addr.Netip() || len(f.Allowed.List()) != 10_001 || !f.Allowed.Contains(f.Key.Addr) {
				t.Fatalf("%v admits %v besides, and has %d ranges", f.Key, also, len(f.Allowed.List()))
			}
			if first == nil {
				first = common
			}
			return true
		})
		if frontends != 1000 || len(sets) != 1 || !sets[first] {
			t.Errorf("%d frontends have %d sets, the first of before: %t", frontends, len(sets), sets[first])
		}
	}
	h.tracker.Upsert(hostileSource, service)
	h.tracker.Upsert(hostileSource, slice)
	h.compile()
	check()
	service = service.DeepCopy()
	service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	h.tracker.Upsert(hostileSource, service)
	h.compile()
	check()
}

// TestSelfCheckOfManyFrontends: the self check reads shared endpoints and their table once for all
// frontends. 8,192 frontends with tables of 16,001 slots took 10 s of the loop.
func TestSelfCheckOfManyFrontends(t *testing.T) {
	h := newHostileTenant(t)
	vips := make([]string, 60)
	for i := range vips {
		vips[i] = fmt.Sprintf("203.0.113.%d", 1+i)
	}
	service, slice := many(64, 160, vips...)
	h.tracker.Upsert(hostileSource, service)
	h.tracker.Upsert(hostileSource, slice)
	h.compile()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if d := h.compiler.CheckAll(h.tracker); d != "" {
		t.Fatal(d)
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 100 {
		t.Errorf("the check allocates %d MiB, want 100 at most: it copies a table for each frontend", got)
	} else {
		t.Logf("%d MiB", got)
	}
}
