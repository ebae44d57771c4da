package compiler

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/maglev"
)

// TestManyTablesOfOneService: a Service with many ports, each with a small table, has at most as
// many slots built in one Compile as a Service with one large table.
func TestManyTablesOfOneService(t *testing.T) {
	const ports, endpoints = 100, 160
	l := newLimited(t, Config{NamespaceShare: 50})
	l.tracker.Upsert(limitsSource, wide("many", 1, ports, 1))
	l.tracker.Upsert(limitsSource, wideSlice("many", 1, ports, endpoints))
	l.Compile(l.tracker.Changes())
	l.DeferTables(true)
	s, no := wideSlice("many", 1, ports, endpoints), false
	s.Endpoints[0].Conditions.Ready = &no
	l.tracker.Upsert(limitsSource, s)
	l.Compile(l.tracker.Changes())
	if most := maxInlineOfUnit / maglev.Size(endpoints-1); l.Queued() < ports-most {
		t.Errorf("%d of %d tables are deferred, and %d may be built", l.Queued(), ports, most)
	}
	for j := l.NextTable(); j != nil; j = l.NextTable() {
		j.Build()
		l.Install(j)
	}
	if d := l.CheckAll(l.tracker); d != "" {
		t.Error(d)
	}
}

// TestFirstSnapshotIsNotHeldUp: before the first snapshot large tables are built up to a number of
// slots; the others are deferred.
func TestFirstSnapshotIsNotHeldUp(t *testing.T) {
	const ports, endpoints = 5, 500
	l := newLimited(t, Config{NamespaceShare: 50})
	l.tracker.Upsert(limitsSource, wide("large", 1, ports, 1))
	l.tracker.Upsert(limitsSource, wideSlice("large", 1, ports, endpoints))
	l.DeferTables(true)
	l.BuildAtOnce(3 * maglev.Size(endpoints))
	l.Compile(l.tracker.Changes())
	if n := l.Queued(); n != ports-3 {
		t.Errorf("%d tables are deferred, want %d", n, ports-3)
	}
	s, no := wideSlice("large", 1, ports, endpoints), false
	s.Endpoints[0].Conditions.Ready = &no
	l.tracker.Upsert(limitsSource, s)
	l.Compile(l.tracker.Changes())
	if n := l.Queued(); n != ports {
		t.Errorf("%d tables are deferred by the next Compile, want %d", n, ports)
	}
}

// TestSlotsOfTwoSets: the upper bound of the slots also holds if each port has two sets: all
// endpoints, for pods, and this node's endpoints.
func TestSlotsOfTwoSets(t *testing.T) {
	const ports, endpoints = 12, 10_500
	l := newLimited(t, Config{NamespaceShare: 100, NodeName: "gw-1",
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	l.DeferTables(true) // nothing is built here
	s := wide("two", 1, ports, 1)
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	l.tracker.Upsert(limitsSource, s)
	node := "gw-1"
	for n := 0; n < endpoints; n += 500 {
		slice := wideSlice("two", byte(n/500), ports, 500)
		for i := range slice.Endpoints {
			if n+i > 0 {
				slice.Endpoints[i].NodeName = &node
			}
		}
		l.tracker.Upsert(limitsSource, slice)
	}
	l.Compile(l.tracker.Changes())
	slots, wants := 0, 0
	for _, u := range l.units.byKey {
		wants += u.wants.slots
		for _, p := range u.ports {
			for _, s := range p.families[0].sets {
				if s.set != nil {
					slots += maglev.Size(len(s.set.Backends))
				}
			}
		}
	}
	if slots < 2*ports*maglev.Size(endpoints-1) || wants < slots {
		t.Errorf("%d slots, and %d were counted", slots, wants)
	}
}
