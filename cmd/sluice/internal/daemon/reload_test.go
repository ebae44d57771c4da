package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header"
)

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
		{"configured", []string{"203.0.113.1", "2001:db8::9"}, routed, []string{"203.0.113.1"}, []string{"2001:db8::9"}, false, false},
		{"one family configured", []string{"203.0.113.1", "203.0.113.2"}, routed, []string{"203.0.113.1", "203.0.113.2"}, routed[2:], false, true},
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
