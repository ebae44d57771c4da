package bgp

import (
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce"
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
	known := arrivals{links: all, notServed: links.NotServed(all, []string{"eth0"})}
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

// TestLeaveOutEach: an error about one session leaves the other ones with their own interface. The
// session keeps its previous one, and the Problem about it.
func TestLeaveOutEach(t *testing.T) {
	t.Parallel()
	a := &arrivals{notServed: map[string]bool{"mgmt0": true}, source: func(netip.Addr) (netip.Addr, error) {
		return netip.Addr{}, unix.EMFILE
	}}
	for range 20 { // sessions are in random order
		s := New(Config{Log: slog.New(slog.DiscardHandler)})
		for _, p := range []*kinds.Peer{{Name: "fails", Address: addresses[0]}, {Name: "had", Address: addresses[1]},
			{Name: "other", Interface: "mgmt0"}} {
			s.sessions[p.Name] = newSession(p)
		}
		s.sessions["had"].notServed = "mgmt1"
		s.sessions["other"].address = netip.MustParseAddr("fe80::1%mgmt0")
		s.leaveOut(&announce.World{}, a)
		for name, want := range map[string]string{"fails": "", "had": "mgmt1", "other": "mgmt0"} {
			if got := s.sessions[name].notServed; got != want {
				t.Fatalf("%s: packets arrive at %q, want %q", name, got, want)
			}
		}
		if len(s.problems) != 2 {
			t.Fatalf("problems: %+v", s.problems)
		}
	}
}
