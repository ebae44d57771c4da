package decide

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestSpeculativePlanComparesFew: a speculative plan compares the connections of a few backends,
// but not of many, because each new flow would read them twice.
func TestSpeculativePlanComparesFew(t *testing.T) {
	for _, c := range []struct {
		backends    int
		by          services.Scheduler
		speculative bool
		want        bool // a backend
	}{
		{maxSpeculative, services.LeastConn, true, true},
		{maxSpeculative + 1, services.LeastConn, true, false},
		{maxSpeculative + 1, services.LeastConn, false, true},
		{maxSpeculative + 1, services.Maglev, true, true},
	} {
		s, f := leastPlanner(c.backends, c.by)
		var n Plan
		req := Request{Tuple: &header.Tuple{Src: f.Addr, Dst: f.Addr, SrcPort: 1, DstPort: f.Port, Proto: f.Proto},
			Opens: true, TTL: 64, DryRun: true, Speculative: c.speculative}
		req.Tuple.Src[15]++
		s.Plan(&n, &req)
		if got := n.Backend != nil; got != c.want {
			t.Errorf("%+v: a backend: %v", c, got)
		}
	}
}

// leastPlanner returns a planner with one frontend that has the given number of backends.
func leastPlanner(backends int, by services.Scheduler) (*Planner, services.FrontendKey) {
	at := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	b := services.NewBuilder(nil)
	b.Settings().SNAT4 = []header.Addr{at("10.0.1.2")}
	set := &services.EndpointSet{}
	for i := range backends {
		a := at("10.0.1.11")
		a[14] += byte(i >> 8)
		a[15] += byte(i)
		be := services.Backend{Addr: a, Port: 8080, Ref: services.MakeBackendRef(uint32(i), 1)}
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
	}
	f := &services.Frontend{
		Key:     services.FrontendKey{Addr: at("203.0.113.10"), Port: 80, Proto: header.ProtoTCP},
		Service: &services.Service{Scheduler: by}, Outside: services.Rule{Set: set},
	}
	b.SetFrontend(f)
	routes := new(bart.Table[nexthop.Route])
	routes.Insert(netip.MustParsePrefix("10.0.0.0/16"), nexthop.Route{Hop: 2, Kind: nexthop.OnLink})
	return &Planner{
		Snap: b.Build(), View: &nexthop.View{Routes: routes}, Loads: make([]atomic.Int32, backends),
	}, f.Key
}

// BenchmarkPlan measures the choice of a backend by least connections for a new flow, with and
// without the lookahead's plan.
func BenchmarkPlan(b *testing.B) {
	for _, backends := range []int{16, 1024} {
		for _, lookahead := range []bool{false, true} {
			b.Run(fmt.Sprintf("lc/backends=%d/lookahead=%v", backends, lookahead), func(b *testing.B) {
				s, f := leastPlanner(backends, services.LeastConn)
				t := header.Tuple{Src: f.Addr, Dst: f.Addr, SrcPort: 1, DstPort: f.Port, Proto: f.Proto}
				t.Src[15]++
				req := Request{Tuple: &t, Opens: true, TTL: 64}
				for b.Loop() {
					var n Plan
					if lookahead {
						req.DryRun, req.Speculative = true, true
						s.Plan(&n, &req)
						req.DryRun, req.Speculative = false, false
					}
					s.Plan(&n, &req)
				}
			})
		}
	}
}
