package daemon

import (
	"errors"
	"net/netip"
	"testing"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// TestFlowReaderClosed: who still asks for flows when the table is about to be
// unmapped gets none.
func TestFlowReaderClosed(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024, Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	r, err := newFlowReader(table)
	must(t, err)
	found := 0
	create(t, table, true, &flowtable.NewFlow{
		Client:  header.Tuple{Src: header.AddrFrom(netip.MustParseAddr("198.51.100.7")), SrcPort: 999, Dst: header.AddrFrom(netip.MustParseAddr("203.0.113.9")), DstPort: 80, Proto: header.ProtoTCP},
		Backend: header.AddrFrom(netip.MustParseAddr("10.0.0.5")), BackendPort: 8080, Source: header.AddrFrom(netip.MustParseAddr("192.0.2.20")),
		Service: 1, BackendRef: 1, Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
	})
	r.all(func(*flowtable.Info) { found++ })
	if found != 1 {
		t.Fatalf("%d flows before, want 1", found)
	}
	r.close()
	r.all(func(*flowtable.Info) { t.Error("a flow is read") })
	if _, err := r.delete(t.Context(), func(*flowtable.Info) bool { return true }); !errors.Is(err, errFlowsClosed) {
		t.Errorf("delete: %v", err)
	}
}
