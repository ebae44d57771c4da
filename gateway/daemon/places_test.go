package daemon

import (
	"testing"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/host/nic/devices"
)

// TestPlacesInFlowTable: the flow table has a handle for each of the most workers that a plan may
// have, and for all other users.
func TestPlacesInFlowTable(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{
		IPv4Flows: 1024, IPv6Flows: 1024, Timeouts: flowtable.DefaultTimeouts(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := flows.NewReader(table, new(services.Handle))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := explain.New(explain.Config{Flows: table, Affinity: new(affinity.Table), Hops: nexthop.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for worker := range devices.MostWorkers {
		h, err := table.Register()
		if err != nil {
			t.Fatalf("worker %d: %v", worker, err)
		}
		defer h.Close()
	}
}
