package stateless

import (
	"net/netip"
	"testing"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// traffic4 is 1,000 UDP flows.
func traffic4() Traffic {
	return Traffic{
		Sources:          Addresses{First: netip.MustParseAddr("10.1.255.250"), Count: 10},
		Destinations:     Addresses{First: netip.MustParseAddr("10.2.0.1")},
		SourcePorts:      Ports{1024, 1123},
		DestinationPorts: Ports{First: 80},
		Flows:            1000,
	}
}
