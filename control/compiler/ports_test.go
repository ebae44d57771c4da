package compiler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/machine"
)

// TestThousandsOfPorts: the cost of a Service grows with its ports plus the ports of its slices,
// not with their product, and not with endpoints times ports if these are refused or equal.
func TestThousandsOfPorts(t *testing.T) {
	const bound = 10 * time.Second // by the product the first takes minutes
	for _, tt := range []struct {
		name          string
		ports, slices int
		slicePorts    int
		endpoints     int
		at            string // of all endpoints
	}{
		{name: "that slices do not have", ports: 8000, slices: 16, slicePorts: 20_000, endpoints: 1, at: "10.9.9.9"},
		{name: "endpoints refused", ports: 8000, slices: 10, slicePorts: 8000, endpoints: 1000, at: "192.0.2.20"},
		{name: "endpoints of one address", ports: 8000, slices: 10, slicePorts: 8000, endpoints: 1000, at: "10.9.9.9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLimited(t, Config{SNAT4: []header.Addr{header.AddrFrom4([4]byte{192, 0, 2, 20})}})
			s := wide("x", 1, tt.ports, 1)
			if tt.slicePorts > tt.ports {
				for i := range s.Spec.Ports {
					s.Spec.Ports[i].Name = fmt.Sprintf("other%d", i)
				}
			}
			l.tracker.Upsert(limitsSource, s)
			for i := range tt.slices {
				slice := wideSlice("x", byte(i), tt.slicePorts, tt.endpoints)
				for e := range slice.Endpoints {
					slice.Endpoints[e].Addresses[0] = tt.at
				}
				l.tracker.Upsert(limitsSource, slice)
			}
			changes := l.tracker.Changes()
			var first, problems []objects.Problem
			took := machine.CPUTime(func() {
				_, first, _ = l.Compile(changes)
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				l.tracker.Upsert(limitsSource, s)
				_, problems, _ = l.Compile(l.tracker.Changes())
			})
			if took > machine.Slower(bound) {
				t.Errorf("two compiles took %v of processor time", took)
			} else {
				t.Logf("two compiles took %v of processor time", took)
			}
			if n, _ := l.served(1); n != tt.ports {
				t.Errorf("%d frontends", n)
			}
			if len(first) != len(problems) || len(problems) > 11*21 {
				t.Errorf("%d problems, then %d", len(first), len(problems))
			}
		})
	}
}
