package decide

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/header"
)

// TestSettleTakesTheFirstPin: between Plan and Settle of one worker, another worker pins the client
// to another backend with another route. Settle must update every part of the plan that depends on
// the backend. If the other worker's backend is not in the set, the plan keeps its own.
func TestSettleTakesTheFirstPin(t *testing.T) {
	at := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	near, far, stranger, client, host := at("10.0.1.11"), at("10.244.0.5"), at("10.0.1.99"), at("198.51.100.7"),
		at("192.0.0.1")
	b := services.NewBuilder(nil)
	b.Settings().SNAT4 = []header.Addr{at("10.0.1.2")}
	set := &services.EndpointSet{Table: []uint16{0}} // the scheduler knows only the first
	for i, a := range []header.Addr{near, far} {
		be := services.Backend{Addr: a, Port: 8080, Ref: services.MakeBackendRef(uint32(i), 1)}
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
	}
	f := &services.Frontend{
		Key:     services.FrontendKey{Addr: at("203.0.113.10"), Port: 80, Proto: header.ProtoTCP},
		Service: &services.Service{Identity: 7, AffinitySeconds: 60}, Outside: services.Rule{Set: set},
	}
	b.SetFrontend(f)
	routes := new(bart.Table[nexthop.Route])
	routes.Insert(netip.MustParsePrefix("10.0.1.0/24"), nexthop.Route{Hop: 2, Kind: nexthop.OnLink})
	routes.Insert(netip.MustParsePrefix("10.244.0.0/24"), nexthop.Route{Kind: nexthop.Kernel})

	for _, tt := range []struct {
		name            string
		faster, backend header.Addr
		origin          Source
		kind            nexthop.Kind
	}{
		{"by no other worker", header.Addr{}, near, SourcePool, nexthop.OnLink},
		{"to another", far, far, SourceHost, nexthop.Kernel},
		{"to one outside the set", stranger, near, SourcePool, nexthop.OnLink},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pins, err := affinity.NewHeap(affinity.Config{Clients: 10})
			if err != nil {
				t.Fatal(err)
			}
			now := flowtable.Time(time.Hour)
			s := &Planner{Now: now, Snap: b.Build(), View: &nexthop.View{Routes: routes}, Pins: pins, Host4: host}
			req := Request{Tuple: &header.Tuple{Src: client, Dst: f.Key.Addr, SrcPort: 1, DstPort: 80,
				Proto: header.ProtoTCP}, Opens: true, TTL: 64}
			var n Plan
			s.Plan(&n, &req)
			pins.Confirm(now, at("198.51.100.8"), 7, affinity.Pin{Addr: stranger, Port: 8080}, 60)
			lost := Request{Tuple: &header.Tuple{Src: at("198.51.100.8"), Dst: f.Key.Addr, SrcPort: 1, DstPort: 80,
				Proto: header.ProtoTCP}, Opens: true, TTL: 64, Not: set.Backends[1]}
			var again Plan
			if s.Plan(&again, &lost); again.Pinned || again.Backend == nil || again.Backend.Addr != near {
				t.Errorf("pinned to a backend that is gone, and moved from a silent one: %+v", again)
			}
			if n.Backend == nil || n.Backend.Addr != near || n.Pinned {
				t.Fatalf("the plan is %+v", n)
			}
			if tt.faster != (header.Addr{}) {
				pins.Confirm(now, client, 7, affinity.Pin{Addr: tt.faster, Port: 8080}, 60)
			}
			s.Settle(&n, &req)
			if n.Backend.Addr != tt.backend || n.Origin != tt.origin || n.Route.Kind != tt.kind || n.Verdict != queued {
				t.Errorf("to %v from %v (%v), route kind %d, want %v, %v, %d", n.Backend.Addr, n.Source, n.Origin,
					n.Route.Kind, tt.backend, tt.origin, tt.kind)
			}
		})
	}
}
