package bgp

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/links"
)

// TestNotServedOf: packets arrive at the interface whose network contains the next hop, if that is
// known.
func TestNotServedOf(t *testing.T) {
	t.Parallel()
	p := netip.MustParsePrefix
	all := []links.Link{
		{Name: "lo", Index: 1, Kind: "device", Loopback: true,
			Networks: []netip.Prefix{p("127.0.0.1/8"), p("10.9.0.9/32")}},
		{Name: "eth0", Index: 2, Kind: "device", Networks: []netip.Prefix{p("10.0.0.1/24"), p("2001:db8::1/64")}},
		{Name: "mgmt0", Index: 3, Kind: "device", Networks: []netip.Prefix{p("10.1.0.1/24"), p("2001:db8:1::1/64"),
			p("10.1.9.9/32")}},
	}
	known := arrivals{all, links.NotServed(all, []string{"eth0"})}
	for _, c := range []struct{ source, router, link, want string }{
		{"10.0.0.1", "10.0.0.254", "", ""},
		{"10.1.0.1", "10.1.0.254", "", "mgmt0"},
		{"10.1.0.1", "198.51.100.1", "", "mgmt0"}, // a router several hops away
		{"2001:db8:1::1", "2001:db8:1::fe", "", "mgmt0"},
		{"10.9.0.9", "198.51.100.1", "", ""}, // an address without a network
		{"10.1.9.9", "198.51.100.1", "", ""},
		{"10.1.0.1", "10.0.0.1", "", ""},      // a router on this node
		{"192.0.2.1", "198.51.100.1", "", ""}, // no interface has it
		{"", "", "eth0", ""},
		{"", "", "mgmt0", "mgmt0"},
	} {
		peer, router := &kinds.Peer{Interface: c.link}, netip.Addr{}
		if c.link == "" {
			peer.Source, router = netip.MustParseAddr(c.source), netip.MustParseAddr(c.router)
		}
		if got, err := known.notServedOf(peer, router); got != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if got, err := new(arrivals).notServedOf(peer, router); got != "" || err != nil {
			t.Errorf("%+v, and the gateway's interfaces are not known: %q, %v", c, got, err)
		}
	}
}
