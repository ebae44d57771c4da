package flows

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// TestFlowTableViews: each family shows its own flows, and what is not counted by family is
// no family's.
func TestFlowTableViews(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	flow := func(port uint16, client, vip, source, backend string) {
		of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
		create(t, table, true, &flowtable.NewFlow{
			Client: header.Tuple{Src: of(client), SrcPort: port, Dst: of(vip), DstPort: 80, Proto: header.ProtoTCP,
				V6: netip.MustParseAddr(client).Is6()},
			Backend: of(backend), BackendPort: 8080, Source: of(source), Service: 1, BackendRef: 1,
			Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
		})
	}
	flow(1, "198.51.100.7", "203.0.113.9", "192.0.2.20", "10.0.0.5")
	flow(2, "198.51.100.7", "203.0.113.9", "192.0.2.20", "10.0.0.5")
	flow(3, "2001:db8::7", "2001:db8:f::9", "2001:db8::20", "fd00::5")
	c := table.Counts()
	c.Shed[flowtable.ShedExpired], c.Refused[flowtable.TableFull] = 7, 8
	c.SourcesEvicted, c.SourcesMissed = 9, 10
	c.PortsTaken = [2]uint64{11, 12}
	list, events := TableViews(&c)
	for i, want := range []uint64{2, 1} {
		if v := list[i]; v.Used != want || v.HalfOpen != want || v.Counters["created"] != want || len(v.Counters) != 1 {
			t.Errorf("%s: %+v, want %d flows, all half-open", v.Family, v, want)
		}
	}
	if events["shed_expired"] != 7 || events["refused_"+flowtable.TableFull.String()] != 8 ||
		events["limit_sources_evicted"] != 9 || events["limit_sources_missed"] != 10 ||
		events["ports_taken_udp"] != 11 || events["ports_taken_connections"] != 12 ||
		len(events) != int(flowtable.NumSheds)+7 {
		t.Errorf("of both families: %v", events)
	}
}
