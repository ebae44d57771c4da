package status

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

func TestEligible(t *testing.T) {
	const (
		serving = services.BackendServing
		ready   = services.BackendReady | serving
		leaving = services.BackendTerminating | serving
	)
	for _, c := range []struct {
		name     string
		service  services.Service
		flags    services.BackendFlags
		weight   uint16
		in, pods bool
		why      string
	}{
		{name: "it is chosen", flags: ready, weight: 1, in: true},
		{name: "terminating, chosen as none is ready", flags: leaving, weight: 1, in: true,
			why: "terminating, but no endpoint is ready"},
		{name: "chosen by pods", service: services.Service{LocalExternal: true}, flags: ready, weight: 1, pods: true},
		{name: "drained", flags: ready | services.BackendDrained, weight: 1, why: "drained"},
		{name: "no weight", flags: ready, why: "weight 0"},
		{name: "not ready", flags: serving, weight: 1, why: "not ready"},
		{name: "no longer serving", flags: services.BackendTerminating, weight: 1, why: "not ready"},
		{name: "others are ready", flags: leaving, weight: 1, why: "terminating, and others are ready"},
		{name: "elsewhere", service: services.Service{LocalExternal: true}, flags: ready, weight: 1,
			why: "policy Local, and it is not on this node"},
		{name: "elsewhere, inside", service: services.Service{LocalInternal: true}, flags: ready, weight: 1,
			why: "policy Local, and it is not on this node"},
		{name: "here", service: services.Service{LocalExternal: true}, flags: leaving | services.BackendLocal,
			weight: 1, why: "terminating, and others are ready"},
		{name: "another zone's", service: services.Service{Topology: [2]services.Topology{services.TopologyZone, 0}},
			flags: ready, weight: 1, why: "its hints are for other zones"},
		{name: "another node's", service: services.Service{Topology: [2]services.Topology{services.TopologyNode, 0}},
			flags: ready | services.BackendHintZone, weight: 1, why: "its hints are for other nodes"},
		{name: "the other family's topology", service: services.Service{Topology: [2]services.Topology{0,
			services.TopologyNode}}, flags: ready, weight: 1, why: "no frontend uses these endpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := services.NewBuilder(nil)
			p := &c.service
			p.ID, p.Proto = 1, header.ProtoTCP
			b.SetService(p)
			ref := services.MakeBackendRef(3, 1)
			b.SetBackend(services.Backend{Addr: addr("10.1.0.1"), Port: 80, Proto: header.ProtoTCP, Flags: c.flags,
				Weight: c.weight, Ref: ref, Service: 1})
			outside, pods := &services.EndpointSet{}, &services.EndpointSet{Empty: services.EmptyDrop}
			if c.in {
				outside.Backends, pods = []services.BackendRef{ref}, outside
			}
			if c.pods {
				pods.Backends = []services.BackendRef{ref}
			}
			b.SetFrontend(&services.Frontend{Key: services.FrontendKey{Addr: addr("192.0.2.1"), Port: 80,
				Proto: header.ProtoTCP}, Service: p,
				Outside: services.Rule{Set: outside, KeepClient: true},
				Pod:     services.Rule{Set: pods, KeepClient: true}})
			v := BackendViews(b.Build(), NewTotals(nil), nil, nil, nil)[0]
			if v.NewFlows != (c.in || c.pods) || v.PodsOnly != c.pods || v.Why != c.why || v.Weight != c.weight {
				t.Errorf("new flows %v, pods only %v, why %q, weight %d", v.NewFlows, v.PodsOnly, v.Why, v.Weight)
			}
			if got, zone := v.Hints, c.flags&services.BackendHintZone != 0; zone != slices.Equal(got,
				[]string{"zone"}) || !zone && got != nil {
				t.Errorf("hints %q", got)
			}
		})
	}
}

// TestFrontendViewOfOneWithoutTable: a scheduler that compares all backends needs no table, and
// clients are served all the same.
func TestFrontendViewOfOneWithoutTable(t *testing.T) {
	one := services.MakeBackendRef(1, 1)
	outside, pods := &services.EndpointSet{Empty: services.EmptyDrop},
		&services.EndpointSet{Backends: []services.BackendRef{one}}
	v := frontendView(&services.Frontend{Key: services.FrontendKey{Addr: addr("192.0.2.1"), Port: 80,
		Proto: header.ProtoTCP},
		Outside: services.Rule{Set: pods}, Pod: services.Rule{Set: pods}})
	if v.Usable != 1 || v.Slots != 0 || v.Empty != "" || v.Pods != nil || v.SourceRanges != nil {
		t.Errorf("%+v", v)
	}
	v = frontendView(&services.Frontend{Key: services.FrontendKey{Addr: addr("192.0.2.1"), Port: 80,
		Proto: header.ProtoTCP},
		Outside: services.Rule{Set: outside, KeepClient: true}, Pod: services.Rule{Set: pods},
		Allowed: services.NewPrefixes(prefixes("198.51.100.0/24", "203.0.113.9/32"))})
	if v.Empty != "drop" || v.Pods == nil || *v.Pods != (RuleView{Usable: 1}) ||
		!slices.Equal(v.SourceRanges, []string{"198.51.100.0/24", "203.0.113.9/32"}) {
		t.Errorf("%+v", v)
	}
}

// TestSourceRangesAreBounded: a Service may have tens of thousands, for each of thousands of
// frontends.
func TestSourceRangesAreBounded(t *testing.T) {
	var list []netip.Prefix
	for i := range 300 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 32))
	}
	for n, more := range map[int]int{0: 0, 1: 0, 100: 0, 101: 1, 300: 200} {
		set := &services.EndpointSet{}
		v := frontendView(&services.Frontend{Outside: services.Rule{Set: set}, Pod: services.Rule{Set: set},
			Allowed: services.NewPrefixes(list[:n])})
		if len(v.SourceRanges) != n-more || v.MoreSourceRanges != more {
			t.Errorf("of %d ranges %d are listed and %d are more, want %d more", n, len(v.SourceRanges),
				v.MoreSourceRanges, more)
		}
	}
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}
