package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/nat/header"
)

// TestHealthAddresses: the selected addresses, or all of the families there are.
func TestHealthAddresses(t *testing.T) {
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, s := range texts {
			list = append(list, netip.MustParseAddr(s))
		}
		return list
	}
	some := []config.AddressSelector{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}
	for _, c := range []struct {
		name      string
		selectors []config.AddressSelector
		nodePorts []netip.Addr
		want      []netip.Addr
	}{
		{"all of two families", nil, addrs("10.0.0.1", "192.0.2.1", "2001:db8::1"), addrs("0.0.0.0", "::")},
		{"all of one", nil, addrs("10.0.0.1", "10.0.0.2"), addrs("0.0.0.0")},
		{"selected", some, addrs("10.0.0.1", "10.0.0.2", "10.0.0.1"), addrs("10.0.0.1", "10.0.0.2")},
		{"selected, and none is there", some, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var nodePorts []header.Addr
			for _, a := range c.nodePorts {
				nodePorts = append(nodePorts, header.AddrFrom(a))
			}
			if got := healthAddresses(&config.Configuration{NodeAddresses: c.selectors}, nodePorts); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
