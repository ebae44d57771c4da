package bgp

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// TestFindRouterID: the ID is an address by which others reach this node, not one that all nodes
// have.
func TestFindRouterID(t *testing.T) {
	t.Parallel()
	a := func(s string) (out netip.Addr) {
		if s != "" {
			out = netip.MustParseAddr(s)
		}
		return out
	}
	for name, c := range map[string]struct {
		node  string
		peers []*kinds.Peer
		want  string
	}{
		"the Node's":        {"10.0.0.5", []*kinds.Peer{{Address: a("192.0.2.1")}}, "10.0.0.5"},
		"the session's":     {"", []*kinds.Peer{{Address: a("192.0.2.1")}}, "192.0.2.9"},
		"the peer's source": {"", []*kinds.Peer{{Address: a("192.0.2.1"), Source: a("192.0.2.7")}}, "192.0.2.7"},
		"of an IPv6 Node":   {"2001:db8::5", []*kinds.Peer{{Address: a("192.0.2.1")}}, "192.0.2.9"},
		"of the second session": {"", []*kinds.Peer{{Address: a("2001:db8::1")}, {Address: a("192.0.2.1")}},
			"192.0.2.9"},
		"no IPv4":  {"", []*kinds.Peer{{Address: a("2001:db8::1")}, {Interface: "eth0"}}, "107.12.52.49"},
		"no route": {"", []*kinds.Peer{{Address: a("198.51.100.1")}}, "107.12.52.49"},
	} {
		w := &announce.World{Node: announce.Node{Name: "n", Address: a(c.node)}}
		got := findRouterID(w, c.peers, func(to netip.Addr) (netip.Addr, error) {
			if to == a("192.0.2.1") {
				return a("192.0.2.9"), nil
			}
			return netip.Addr{}, errors.New("no route")
		})
		if got != a(c.want) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestRouterIDStays: the found ID stays while GoBGP runs. A routerID that all nodes have is a
// problem.
func TestRouterIDStays(t *testing.T) {
	s, w := newSpeaker(t, closedPort(t), false)
	s.config = Config{Log: slog.New(slog.DiscardHandler)}
	s.Apply(w)
	before := s.server
	w.Node.Address = netip.MustParseAddr("10.0.0.5")
	s.Apply(w)
	if s.server != before {
		t.Error("GoBGP was started again")
	}
	edited := *w.Set.Peers[0]
	edited.RouterID = netip.MustParseAddr("10.0.0.9")
	w.Set.Peers[0] = &edited
	s.Apply(w)
	told := slices.ContainsFunc(s.Report().Problems, func(p kinds.Problem) bool {
		return p.Reason == kinds.Shared && strings.Contains(p.Note, "all gateways have 10.0.0.9")
	})
	if !told || s.identity.routerID != edited.RouterID {
		t.Errorf("router ID %v, %+v", s.identity.routerID, s.Report().Problems)
	}
}
