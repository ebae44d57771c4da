package bgp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// Tests with a server run one after the other, because all GoBGP servers of a process share some
// settings.

// addresses are the router's address for each session, and the speaker's towards it.
var (
	addresses = []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
	sources   = []netip.Addr{netip.MustParseAddr("127.0.0.12"), netip.MustParseAddr("127.0.0.13")}
)

// newSpeaker returns a speaker, and a World with a VIP and two peers, which listen on a port.
func newSpeaker(t *testing.T, port uint16, restart bool) (*Speaker, *announce.World) {
	t.Helper()
	s := New(Config{Log: slog.New(slog.DiscardHandler), RouterID: netip.MustParseAddr("127.0.0.1")})
	t.Cleanup(func() {
		if s.server != nil {
			s.server.Stop()
		}
	})
	vip := netip.MustParseAddr("192.0.2.7")
	pool := &kinds.Pool{}
	w := &announce.World{Gateway: announce.Yes, Set: &kinds.Set{Advertisements: []*kinds.Advertisement{
		{Name: "all", Length4: 32, Length6: 128},
	}}, VIPs: []*announce.VIPVerdict{{VIP: vip, Pool: pool, Grade: announce.Yes}}}
	for i, a := range addresses {
		w.Set.Peers = append(w.Set.Peers, &kinds.Peer{Name: string(rune('a' + i)), MyASN: 64500, PeerASN: 64501,
			Address: a, Source: sources[i], Port: port, Hold: 90 * time.Second, Keepalive: 30 * time.Second,
			Connect: time.Second, Restart: restart})
	}
	return s, w
}

// has returns the addresses that GoBGP has.
func has(t *testing.T, s *Speaker) (list []netip.Addr) {
	t.Helper()
	err := s.server.ListPeer(t.Context(), &api.ListPeerRequest{}, func(p *api.Peer) {
		list = append(list, netip.MustParseAddr(p.Conf.NeighborAddress))
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// say returns an event in GoBGP's form.
func say(s *Speaker, a netip.Addr, state wire.FSMState, at time.Time) {
	s.peerChanged(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE,
		Peer: apiutil.Peer{State: apiutil.PeerState{NeighborAddress: a, SessionState: state}}}, at)
}

// TestLateEvents: GoBGP's events about a removed session arrive when the next session is about to
// begin, or has begun. The next one begins, and its status is not the old one's.
func TestLateEvents(t *testing.T) {
	edit := func(w *announce.World) {
		for i, p := range w.Set.Peers {
			edited := *p
			edited.MultiHop = true
			w.Set.Peers[i] = &edited
		}
	}
	for name, change := range map[string]func(*announce.World){"ended": func(*announce.World) {}, "edited": edit} {
		t.Run(name, func(t *testing.T) {
			s, w := newSpeaker(t, closedPort(t), false)
			s.Apply(w)
			for _, a := range addresses {
				say(s, a, wire.BGP_FSM_ESTABLISHED, time.Now())
				say(s, a, wire.BGP_FSM_IDLE, time.Now())
			}
			before := time.Now()
			change(w)
			peers, ctx := newTable(w).peers, context.Background()
			s.removePeers(ctx, peers)
			s.beginAgain(ctx)
			say(s, addresses[0], wire.BGP_FSM_IDLE, time.Now())
			s.prepare(ctx, peers)
			say(s, addresses[1], wire.BGP_FSM_IDLE, time.Now())
			s.addPeers(ctx, peers)
			if list := has(t, s); !slices.Equal(list, addresses) {
				t.Fatalf("GoBGP has %v, want %v", list, addresses)
			}
			say(s, addresses[0], wire.BGP_FSM_ESTABLISHED, before)
			for _, p := range s.Report().Peers {
				if p.Up {
					t.Errorf("a session is shown as the one before it: %+v", p)
				}
			}
		})
	}
}

// TestSetIsTriedAgain: a session whose neighbour set could not be made does not begin, and the set
// is made later.
func TestSetIsTriedAgain(t *testing.T) {
	s, w := newSpeaker(t, closedPort(t), false)
	peers, ctx := newTable(w).peers, context.Background()
	if err := s.ensureServer(ctx, peers, s.routerID(w, peers)); err != nil {
		t.Fatal(err)
	}
	working := s.server
	s.server = server.NewBgpServer() // never started, so it does not answer
	go s.server.Serve()
	s.prepare(ctx, peers)
	s.addPeers(ctx, peers)
	for _, p := range s.Report().Peers {
		if p.Why == "" {
			t.Errorf("it is not said why %s does not begin: %+v", p.Name, p)
		}
	}
	s.server.Stop()
	s.server = working
	s.Apply(w)
	if list := has(t, s); !slices.Equal(list, addresses) {
		t.Fatalf("GoBGP has %v, want %v", list, addresses)
	}
	sets := 0
	err := s.server.ListDefinedSet(ctx, &api.ListDefinedSetRequest{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR},
		func(*api.DefinedSet) { sets++ })
	if err != nil || sets != len(addresses) {
		t.Errorf("GoBGP has %d sets of neighbours (%v), want %d", sets, err, len(addresses))
	}
}

// closedPort returns a port without a listener.
func closedPort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// router is a GoBGP with which the speaker has two sessions.
type router struct {
	*server.BgpServer
	t *testing.T
}

func newRouter(t *testing.T, port uint16, restart bool) *router {
	t.Helper()
	level := new(slog.LevelVar)
	r := &router{server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), level)), t}
	go r.Serve()
	t.Cleanup(r.Stop)
	var listen []string
	for _, a := range addresses {
		listen = append(listen, a.String())
	}
	r.must(r.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{Asn: 64501, RouterId: "127.0.0.2",
		ListenPort: int32(port), ListenAddresses: listen}}))
	for _, a := range sources {
		p := &api.Peer{Conf: &api.PeerConf{NeighborAddress: a.String(), PeerAsn: 64500},
			Timers:    &api.Timers{Config: &api.TimersConfig{IdleHoldTimeAfterReset: 1}},
			Transport: &api.Transport{PassiveMode: true},
			AfiSafis: []*api.AfiSafi{{Config: &api.AfiSafiConfig{Family: families[true], Enabled: true},
				MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: restart}}}}}
		if restart {
			p.GracefulRestart = &api.GracefulRestart{Enabled: true, RestartTime: 60}
		}
		r.must(r.AddPeer(t.Context(), &api.AddPeerRequest{Peer: p}))
	}
	return r
}

func (r *router) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// paths returns how many paths of the VIP the router has.
func (r *router) paths() (n int) {
	r.t.Helper()
	r.must(r.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: wire.RF_IPv4_UC},
		func(_ wire.NLRI, list []*apiutil.Path) { n += len(list) }))
	return n
}

// until applies a World repeatedly, as a Loop does, until the router has n paths.
func (r *router) until(n int, s *Speaker, w *announce.World) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); r.paths() != n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("the router has %d paths, want %d: %+v", r.paths(), n, s.Report().Peers)
		}
		if w != nil {
			s.Apply(w)
		}
	}
}

// TestSessionsReturn: two routers end their sessions at the same time, and both are soon up again.
func TestSessionsReturn(t *testing.T) {
	port := closedPort(t)
	r := newRouter(t, port, false)
	s, w := newSpeaker(t, port, false)
	r.until(2, s, w)
	for _, a := range sources {
		r.must(r.ResetPeer(t.Context(), &api.ResetPeerRequest{Address: a.String()}))
	}
	r.until(0, s, w)
	r.until(2, s, w)
}

// TestClose: the routes of a closed speaker with graceful restart stay for the next process if the
// gateway forwards, and go if the gateway drains, because no process follows.
func TestClose(t *testing.T) {
	for _, c := range []struct {
		gateway announce.Grade
		routes  int
	}{{announce.Yes, 2}, {announce.Leaving, 0}} {
		t.Run(c.gateway.String(), func(t *testing.T) {
			port := closedPort(t)
			r := newRouter(t, port, true)
			s, w := newSpeaker(t, port, true)
			r.until(2, s, w)
			w.Gateway = c.gateway
			s.Apply(w)
			s.Close()
			r.until(c.routes, s, nil)
			for range 30 {
				time.Sleep(10 * time.Millisecond)
				if n := r.paths(); n != c.routes {
					t.Fatalf("the router has %d paths, want %d", n, c.routes)
				}
			}
		})
	}
}
