package compiler

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestCompilerKeepsNothingOfDeletedObjects compiles Services that contest frontends, share tables
// and have VIPs for endpoints, changes them, deletes all, and looks into every
// table of the compiler.
func TestCompilerKeepsNothingOfDeletedObjects(t *testing.T) {
	tr, c := tracker.New(), New(Config{
		NodeName: "gw", ClusterIPs: true, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	flows := true
	c.WatchFlows(func(services.BackendRef) bool { return flows })
	met := map[string]bool{}
	for round := range 20 {
		var b tracker.Batch
		for i := range 10 {
			for _, from := range []string{"a", "b"}[:1+i%2] {
				b.Upsert(objects.Source{Kind: "test", Path: from}, leakService(i, round))
				b.Upsert(objects.Source{Kind: "test", Path: from}, leakSlice(i, round))
			}
		}
		tr.Apply(&b)
		_, problems, _ := c.Compile(tr.Changes())
		if got, want := tableUsers(c); got != want {
			t.Fatalf("tables have %d users, and are used by %d sets", got, want)
		}
		met["shared sets"] = met["shared sets"] || sharesSet(c)
		met["tables"] = met["tables"] || len(c.tables.store) > 0
		met["keep-sources"] = met["keep-sources"] || len(c.kept.count) > 0
		met["contested"] = met["contested"] || len(c.contest.claims.pairs) >
			len(c.contest.claims.head)+unused(&c.contest.claims)
		met["problems"] = met["problems"] || len(problems) > 0
		met["problems"] = met["problems"] || len(tr.Locate(nil)) > 5
	}
	for what, was := range met {
		if !was {
			t.Fatalf("the test meets no %s", what)
		}
	}
	for i := range 10 {
		for _, from := range []string{"a", "b"} {
			tr.Delete(objects.Source{Kind: "test", Path: from}, objects.ObjectID{Kind: objects.KindService,
				Namespace: "", Name: fmt.Sprintf("s%d", i)})
			tr.Delete(objects.Source{Kind: "test", Path: from}, objects.ObjectID{Kind: objects.KindEndpointSlice,
				Namespace: "", Name: fmt.Sprintf("e%d", i)})
		}
	}
	s, problems, _ := c.Compile(tr.Changes())
	c.Release(s.Generation)
	if len(c.ids.waiting) == 0 {
		t.Error("no backend's number waits for its flows")
	}
	for flows = false; len(c.ids.waiting) > 0; {
		c.Release(s.Generation)
	}
	for what, n := range map[string]int{
		"problems": len(problems), "units": len(c.units.byKey), "owners": len(c.units.owner),
		"claims": len(c.contest.claims.head), "uses": len(c.addrs.uses.head), "own addresses": len(c.addrs.own),
		"units behind": len(c.contest.behind),
		"keep-sources": len(c.kept.count), "tables": len(c.tables.store),
		"claim pairs":  len(c.contest.claims.pairs) - unused(&c.contest.claims),
		"use pairs":    len(c.addrs.uses.pairs) - unused(&c.addrs.uses),
		"unit numbers": len(c.units.byNum) - len(c.units.free),
		"backends":     int(c.ids.backends.next) - 1 - len(c.ids.backends.free),
		"services":     int(c.ids.services.next) - 1 - len(c.ids.services.free),
		"steered":      c.Steer().Open.Len(),
	} {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
	s.Addrs(func(a header.Addr, _ services.AddrFlags) bool { t.Errorf("address %v is left", a); return true })
}

// tableUsers counts the users that shared tables know of, and those there are.
func tableUsers(c *Compiler) (known, are int) {
	for _, tables := range c.tables.store {
		for _, t := range tables {
			known += t.users
		}
	}
	for _, u := range c.units.byKey {
		for _, p := range u.ports {
			for _, f := range p.families {
				for _, s := range f.sets {
					if s.table != nil {
						are++
					}
				}
			}
		}
	}
	return known, are
}

// sharesSet reports whether a port has one set for both of its policies.
func sharesSet(c *Compiler) bool {
	for _, u := range c.units.byKey {
		for _, p := range u.ports {
			for _, f := range p.families {
				if f.sets[clusterSet].table != nil && f.sets[clusterSet].set == f.sets[localSet].set {
					return true
				}
			}
		}
	}
	return false
}

func unused[K comparable](r *relation[K]) (n int) {
	for at := r.free; at != none; at = r.pairs[at].next {
		n++
	}
	return n
}

func leakService(i, round int) *corev1.Service {
	s := &corev1.Service{}
	s.Name = fmt.Sprintf("s%d", i)
	s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", 1+(i+round)%12)}
	s.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("192.0.2.%d/32", round)}
	s.Annotations = map[string]string{"sluice.dev/scheduler": []string{"maglev", "wrr", "lc"}[round%3],
		"sluice.dev/weights": fmt.Sprintf("10.0.0.0/29=%d", round)}
	s.Spec.ExternalIPs = []string{fmt.Sprintf("10.0.0.%d", 1+(i+round)%7)}
	s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: int32(80 + round%2), NodePort: int32(30000 + i%3)},
		{Name: fmt.Sprint("b", round%3), Port: 90}}
	if round%3 == 0 {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if i == 3 && round%4 == 0 {
		s.Spec.Type = "no such type"
	}
	return s
}

func leakSlice(i, round int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Name, s.Labels = fmt.Sprintf("e%d", i), map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d",
		(i+round/5)%10)}
	name, port, node, ready := "a", int32(8080), "gw", round%4 != 1
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
	for e := range (i + round) % 5 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", 5+e*(1+round%3))}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// TestProblemsAreBounded: an object with a thousand problems says twenty.
func TestProblemsAreBounded(t *testing.T) {
	s := leakSlice(0, 0)
	for range 1000 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}})
	}
	tracker, c := tracker.New(), New(Config{})
	tracker.Upsert(objects.Source{Kind: "test"}, leakService(0, 0))
	tracker.Upsert(objects.Source{Kind: "test"}, s)
	_, problems, _ := c.Compile(tracker.Changes())
	if n := len(problems); n != objects.MaxFieldProblems+1 {
		t.Errorf("%d problems", n)
	}
}
