package nodeconfig

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/nat/header"
)

// TestNodePortAddresses: what nodeAddresses selects, of a node with two interfaces of
// ours and one that is not.
func TestNodePortAddresses(t *testing.T) {
	all := []neigh.Address{
		{Link: -1, Prefix: netip.MustParsePrefix("127.0.0.1/8")},
		{Link: -1, Prefix: netip.MustParsePrefix("172.16.0.1/16"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("192.0.2.9/24"), Global: true, Secondary: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("192.0.2.1/24"), Global: true, Usable: true},
		{Link: 1, Prefix: netip.MustParsePrefix("10.0.0.1/8"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("2001:db8::9/64"), Global: true},
		{Link: 0, Prefix: netip.MustParsePrefix("2001:db8::1/64"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("fe80::1/64"), Usable: true},
	}
	primary := []config.AddressSelector{{Primary: true}}
	for _, tt := range []struct {
		name  string
		which []config.AddressSelector
		node  objects.NodeInfo
		want  []string
	}{
		{"all of our interfaces", nil, objects.NodeInfo{}, []string{"192.0.2.9", "192.0.2.1", "10.0.0.1", "2001:db8::9",
			"2001:db8::1"}},
		{"a network", []config.AddressSelector{{Prefix: netip.MustParsePrefix("172.16.0.0/12")}}, objects.NodeInfo{},
			[]string{"172.16.0.1"}},
		{"primary, of the Node", primary,
			objects.NodeInfo{Known: true, Addresses: parse([]string{"10.0.0.1", "192.0.2.1", "2001:db8::9"})},
			[]string{"10.0.0.1", "2001:db8::9"}},
		{"primary, the Node has one family", primary,
			objects.NodeInfo{Known: true, Addresses: parse([]string{"172.16.0.1"})}, []string{"172.16.0.1"}},
		{"primary, the Node's address is elsewhere", primary,
			objects.NodeInfo{Known: true, Addresses: parse([]string{"203.0.113.7"})}, nil},
		{"primary, no Node", primary, objects.NodeInfo{}, []string{"192.0.2.1", "2001:db8::1"}},
		{"primary and a network", append(primary, config.AddressSelector{Prefix: netip.MustParsePrefix("10.0.0.0/8")}),
			objects.NodeInfo{},
			[]string{"192.0.2.1", "10.0.0.1", "2001:db8::1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []netip.Addr
			for _, a := range nodePortAddresses(&config.Configuration{NodeAddresses: tt.which}, all, tt.node) {
				got = append(got, a.Netip())
			}
			if !slices.Equal(got, parse(tt.want)) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestSourcesOf: what is configured for a family overrides what routes say, for
// that family.
func TestSourcesOf(t *testing.T) {
	routed := []string{"192.0.2.1", "198.51.100.1", "2001:db8::1"}
	for _, tt := range []struct {
		name               string
		configured, routed []string
		want4, want6       []string
		byRoute4, byRoute6 bool
	}{
		{"by route", nil, routed, routed[:2], routed[2:], true, true},
		{"configured", []string{"203.0.113.1", "2001:db8::9"}, routed, []string{"203.0.113.1"}, []string{"2001:db8::9"},
			false, false},
		{"one family configured", []string{"203.0.113.1", "203.0.113.2"}, routed,
			[]string{"203.0.113.1", "203.0.113.2"}, routed[2:], false, true},
		{"none of a family", nil, routed[:1], routed[:1], nil, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range []struct {
				v6, byRoute bool
				want        []string
			}{{false, tt.byRoute4, tt.want4}, {true, tt.byRoute6, tt.want6}} {
				var want []header.Addr
				for _, a := range parse(f.want) {
					want = append(want, header.AddrFrom(a))
				}
				got, byRoute := sourcesOf(parse(tt.configured), parse(tt.routed), f.v6)
				if !slices.Equal(got, want) || byRoute != f.byRoute {
					t.Errorf("IPv6 %v: got %v by route %v, want %v %v", f.v6, got, byRoute, want, f.byRoute)
				}
			}
		})
	}
}

func parse(all []string) (list []netip.Addr) {
	for _, a := range all {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

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
			if got := HealthAddresses(&config.Configuration{NodeAddresses: c.selectors}, nodePorts); !slices.Equal(got,
				c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
