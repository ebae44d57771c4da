package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/bfd"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Speaker.
type Config struct {
	Log *slog.Logger
	// RouterID of this node, an IPv4 address; not valid: one is found (findRouterID). Peers may
	// have one of their own.
	RouterID netip.Addr
	// Restarting: a process before may have announced routes, which peers with graceful restart
	// keep.
	Restarting bool
}

// Speaker is a BGP speaker.
type Speaker struct {
	config  Config
	log     *slog.Logger
	changed wake.Flag

	// The goroutine that calls Apply has these.
	server   *server.BgpServer // nil before the first peer
	bfd      *bfd.Endpoint     // nil where server is
	bfdPort  uint16            // 0: that of RFC 5881
	identity identity          // of server
	found    netip.Addr        // by findRouterID
	variants map[string]*variant
	next     uint32
	paths    map[netip.Prefix]*variant
	gateway  announce.Grade // of the last World
	// turn is when sessions that are up begin anew with what is new; zero: none must. waiting are
	// the fields that are new, by the peer's name.
	turn    time.Time
	waiting map[string]string
	number  uint64                // of the last World
	due     map[netip.Prefix]bool // routes that are not known to be as in table
	key     string                // sessionsKey that the other routes are for

	mu       sync.Mutex // guards what follows, which Report reads
	sessions map[string]*session
	table    *table
	problems []kinds.Problem
}

// identity is what a server has for all peers.
type identity struct {
	asn      uint32
	routerID netip.Addr
}

// New returns a speaker without peers.
func New(c Config) *Speaker {
	return &Speaker{config: c, log: c.Log, changed: wake.NewFlag(), variants: map[string]*variant{},
		paths: map[netip.Prefix]*variant{}, sessions: map[string]*session{}, due: map[netip.Prefix]bool{},
		table: &table{}}
}

// Name implements announce.Speaker.
func (s *Speaker) Name() string { return protocol }

// Changed implements announce.Speaker.
func (s *Speaker) Changed() <-chan struct{} { return s.changed }

// Apply implements announce.Speaker. What cannot be done is tried again with the next call.
func (s *Speaker) Apply(w *announce.World) { s.apply(w, time.Now()) }

func (s *Speaker) apply(w *announce.World, now time.Time) {
	ctx := context.Background()
	w = s.inTurn(w, now)
	s.follow(w)
	peers := s.table.peers
	if err := s.ensureServer(ctx, peers, s.routerID(w, peers)); err != nil {
		s.log.Error("BGP cannot be started", "error", err)
		return
	}
	if s.server == nil {
		return
	}
	// Sessions that end first, so that their addresses are free; routes before sessions that begin,
	// so that a restarting one tells all of them at once.
	s.removePeers(ctx, peers)
	s.beginAgain(ctx)
	s.answers(ctx)
	s.prepare(ctx, peers)
	s.leaveOut(w)
	if key := s.sessionsKey(); key != s.key {
		s.key = key
		s.allDue()
		s.changed.Raise() // lines may say something else
	}
	if err := s.applyRoutes(ctx); err != nil {
		s.log.Error("routes are not as they should be, and are tried again", "error", err)
	}
	s.addPeers(ctx, peers)
	s.applyBFD()
}

// answers waits until GoBGP's main goroutine takes a request. Without changes nothing else is asked
// of it: if it has stalled, so does the caller, whose heartbeat says so.
func (s *Speaker) answers(ctx context.Context) {
	if _, err := s.server.GetBgp(ctx, &api.GetBgpRequest{}); err != nil {
		s.log.Warn("GoBGP does not answer", "error", err)
	}
}

// follow brings the table up to date, and notes the routes that are due.
func (s *Speaker) follow(w *announce.World) {
	some := w.Since != 0 && w.Since == s.number && w.Set == s.table.world.Set
	next := s.table
	if !some {
		next = newTable(w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems, s.gateway, s.number, s.table = nil, w.Gateway, w.Number, next
	if !some {
		s.allDue()
		return
	}
	for _, prefix := range next.follow(w, w.Changed) {
		s.due[prefix] = true
	}
}

// allDue notes all routes as due, and those that are to go.
func (s *Speaker) allDue() {
	for prefix := range s.table.routes {
		s.due[prefix] = true
	}
	for prefix := range s.paths {
		s.due[prefix] = true
	}
}

// ensureServer starts GoBGP for the first peer. Another router ID needs another start, by which all
// sessions end: it waits for this gateway's turn.
func (s *Speaker) ensureServer(ctx context.Context, peers []*kinds.Peer, routerID netip.Addr) error {
	if len(peers) == 0 {
		return s.stopServer(ctx)
	}
	want := identity{asn: peers[0].MyASN, routerID: routerID}
	s.noteRouterIDs(peers, want.routerID)
	if s.server != nil && (s.identity.routerID == want.routerID || !s.turn.IsZero()) {
		return nil
	}
	if err := s.stopServer(ctx); err != nil {
		return err
	}
	return s.startServer(ctx, want)
}

func (s *Speaker) startServer(ctx context.Context, id identity) error {
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	b := server.NewBgpServer(server.LoggerOption(slog.New(newListener(s.log.Handler(), s.notUp)), level))
	go b.Serve()
	err := b.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: id.asn, RouterId: id.routerID.String(),
		ListenPort: -1}})
	if err == nil {
		err = learnNothing(ctx, b)
	}
	if err == nil {
		err = b.WatchEvent(ctx, server.WatchEventMessageCallbacks{
			OnPeerUpdate: func(m *apiutil.WatchEventMessage_PeerEvent, at time.Time) { s.peerChanged(m, at) },
		}, server.WatchPeer())
	}
	if err != nil {
		b.Stop()
		return err
	}
	s.log.Info("BGP has started", "router ID", id.routerID)
	s.server, s.identity = b, id
	s.bfd = bfd.New(bfd.Config{Log: s.log, Port: s.bfdPort, Changed: s.changed.Raise,
		Down: func(router netip.Addr, why string) { s.endFailed(b, router, why) }})
	if err := s.assign(ctx); err != nil {
		return err
	}
	return nil
}

// learnNothing has GoBGP reject the routes of peers. Our own pass the same policy.
func learnNothing(ctx context.Context, b *server.BgpServer) error {
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{Name: "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}}}}
	if err := b.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return err
	}
	return b.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		Policies:      []*api.Policy{{Name: own.Name}},
		DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT}})
}

func (s *Speaker) stopServer(context.Context) error {
	if s.server == nil {
		return nil
	}
	s.bfd.Close()
	s.server.Stop()
	s.server, s.bfd = nil, nil
	s.variants, s.paths = map[string]*variant{}, map[netip.Prefix]*variant{}
	s.allDue()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = map[string]*session{}
	return nil
}

func (s *Speaker) note(about kinds.Ref, reason, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, kinds.Problem{About: about, Reason: reason, Note: text})
}

// removePeers ends sessions that are not wanted any more, or not as they are.
func (s *Speaker) removePeers(ctx context.Context, peers []*kinds.Peer) {
	for name, session := range maps.Clone(s.sessions) {
		i := slices.IndexFunc(peers, func(p *kinds.Peer) bool { return p.Name == name })
		if i >= 0 && len(s.reopens(session, peers[i])) == 0 {
			continue
		}
		s.deletePeer(ctx, session)
		s.mu.Lock()
		delete(s.sessions, name)
		s.mu.Unlock()
	}
}

// beginAgain takes sessions that ended out of GoBGP, so that they begin as new ones do. Not those
// with graceful restart: their peers have kept the routes, and GoBGP has what that takes. One that
// the prefix limit ended is taken out in any case: GoBGP would keep the peer's routes with graceful
// restart, and not connect again.
func (s *Speaker) beginAgain(ctx context.Context) {
	s.mu.Lock()
	var ended []*session
	for _, session := range s.sessions {
		if session.again && !session.up {
			ended = append(ended, session)
		}
		session.again = false
	}
	s.mu.Unlock()
	for _, session := range ended {
		s.deletePeer(ctx, session)
	}
}

// deletePeer takes a session out of GoBGP, if it is there, which tells the peer that it ends (RFC
// 4486): the peer removes the routes at once. What GoBGP has yet to say of it is not heard.
func (s *Speaker) deletePeer(ctx context.Context, session *session) {
	if session.begun.IsZero() {
		return
	}
	s.mu.Lock()
	session.begun, session.up, session.state = time.Time{}, false, ""
	s.mu.Unlock()
	err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: session.address.String()})
	if err != nil {
		s.log.Warn("a session does not end", "peer", session.peer.Name, "error", err)
	}
}

// prepare makes what is known of each peer: its address, and the set of neighbours that policies
// name it by.
func (s *Speaker) prepare(ctx context.Context, peers []*kinds.Peer) {
	for _, p := range peers {
		s.mu.Lock()
		session := s.sessions[p.Name]
		if session == nil {
			session = newSession(p)
			s.sessions[p.Name] = session
		}
		session.peer = p // another selector or version of the same
		address, up, why := session.address, session.up, session.limit.why(time.Now())
		s.mu.Unlock()
		if p.Interface != "" && !up {
			var err error
			if address, err = linkLocal(p.Interface); err != nil {
				why = err.Error()
			}
			if address != session.address {
				s.deletePeer(ctx, session)
			}
		}
		named, ours := session.named, session.ours
		if !address.IsValid() {
			ours = nil
		} else {
			if hops, err := nextHops(p, address); err == nil {
				ours = hops
			} else {
				s.log.Warn("next hops of a peer stay as they are", "peer", p.Name, "error", err)
			}
			if address != named {
				if err := s.nameNeighbour(ctx, p.Name, address); err != nil {
					why = err.Error()
					s.log.Error("a session has no policy and does not begin; it is tried again", "peer", p.Name,
						"error", err)
				} else {
					named = address
				}
			}
		}
		s.mu.Lock()
		session.address, session.named, session.ours = address, named, ours
		if session.begun.IsZero() {
			session.why = why
		}
		s.mu.Unlock()
	}
}

// leaveOut finds the sessions whose routes would lead to an interface that the gateway does not
// serve. What cannot be read leaves it as it was.
func (s *Speaker) leaveOut(w *announce.World) {
	arrivals, err := newArrivals(w)
	for _, session := range s.sessions {
		name := session.notServed
		if err == nil && session.address.IsValid() {
			name, err = arrivals.notServedOf(session.peer, session.address)
		}
		if err != nil {
			s.log.Warn("by which interface packets arrive is not known, and stays as it was", "error", err)
			return
		}
		s.mu.Lock()
		session.notServed = name
		s.mu.Unlock()
		if p, ok := session.notServedProblem(w); ok {
			s.note(p.About, p.Reason, p.Note)
		}
	}
}

// nameNeighbour makes the set of neighbours with a peer's address. GoBGP does not look at routes
// again that it kept from a neighbour of no set: sessions begin when theirs is there.
func (s *Speaker) nameNeighbour(ctx context.Context, name string, address netip.Addr) error {
	return s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{Replace: true, DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: neighbours(name),
		List: []string{netip.PrefixFrom(address.WithZone(""), address.BitLen()).String()},
	}})
}

// addPeers begins sessions, and gives GoBGP the timers of those that go on.
func (s *Speaker) addPeers(ctx context.Context, peers []*kinds.Peer) {
	for _, p := range peers {
		session := s.sessions[p.Name]
		if !session.begun.IsZero() && session.timers != timersOf(p) {
			s.updateTimers(ctx, session)
		}
		s.mu.Lock()
		waits := session.limit.waits(time.Now())
		s.mu.Unlock()
		if !session.begun.IsZero() || !session.address.IsValid() || session.address != session.named || waits {
			continue
		}
		s.mu.Lock()
		session.begun = time.Now() // GoBGP speaks of it before AddPeer returns
		s.mu.Unlock()
		err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: session.configuration(s.config.Restarting)})
		session.timers = timersOf(p)
		s.mu.Lock()
		if session.why = ""; err != nil {
			session.begun, session.up, session.state, session.why = time.Time{}, false, "", err.Error()
			s.log.Warn("a session cannot begin, and is tried again", "peer", p.Name, "error", err)
		} else if session.state == "" { // GoBGP may have said more already
			session.state = "IDLE"
		}
		s.mu.Unlock()
	}
}

// updateTimers gives GoBGP the timers of a session, which goes on: the peer hears of the hold time
// in the next OPEN. GoBGP would begin the session anew if anything else were different.
func (s *Speaker) updateTimers(ctx context.Context, session *session) {
	_, err := s.server.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: session.configuration(s.config.Restarting)})
	if err != nil {
		s.log.Warn("timers of a session stay as they are, which is tried again", "peer", session.peer.Name, "error",
			err)
		return
	}
	session.timers = timersOf(session.peer)
}

// applyRoutes makes GoBGP's table ours, for the routes that are due. One whose variant cannot be
// made stays due.
func (s *Speaker) applyRoutes(ctx context.Context) error {
	var errs []error
	var add, gone []*apiutil.Path
	next := map[netip.Prefix]*variant{} // of the paths in add
	for prefix := range s.due {
		r := s.table.routes[prefix]
		v, err := s.variantOf(ctx, prefix, r)
		before := s.paths[prefix]
		if err == nil && v == before {
			delete(s.due, prefix)
			continue
		}
		var path *apiutil.Path
		if err == nil {
			path, err = pathOf(prefix, cmp.Or(v, before))
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case v != nil:
			add, next[prefix] = append(add, path), v
		default:
			gone = append(gone, path)
			s.setPath(prefix, nil)
		}
	}
	if len(gone) > 0 {
		errs = append(errs, s.server.DeletePath(apiutil.DeletePathRequest{Paths: gone}))
	}
	if len(add) > 0 {
		answers, err := s.server.AddPath(apiutil.AddPathRequest{Paths: add})
		errs = append(errs, err)
		for _, a := range answers {
			errs = append(errs, a.Error)
		}
		for prefix, v := range next {
			s.setPath(prefix, v)
		}
	}
	errs = append(errs, s.dropVariants(ctx))
	return errors.Join(errs...)
}

// variantOf returns the variant of a route; nil if there is no route.
func (s *Speaker) variantOf(ctx context.Context, prefix netip.Prefix, r *route) (*variant, error) {
	if r == nil {
		return nil, nil
	}
	one := &Route{prefix, r.to}
	key := s.keyOf(one)
	if v := s.variants[key]; v != nil {
		return v, nil
	}
	return s.newVariant(ctx, one, key)
}

// setPath notes the variant with which GoBGP has a path; nil: it has none.
func (s *Speaker) setPath(prefix netip.Prefix, v *variant) {
	if before := s.paths[prefix]; before != nil {
		before.paths--
	}
	delete(s.due, prefix)
	delete(s.paths, prefix)
	if v != nil {
		v.paths++
		s.paths[prefix] = v
	}
}

func pathOf(prefix netip.Prefix, v *variant) (*apiutil.Path, error) {
	nlri, err := wire.NewIPAddrPrefix(prefix)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", prefix, err)
	}
	p := &apiutil.Path{Nlri: nlri, Attrs: []wire.PathAttributeInterface{wire.NewPathAttributeOrigin(0),
		wire.NewPathAttributeCommunities([]uint32{v.number}), wire.NewPathAttributeLocalPref(0)}}
	if prefix.Addr().Is4() {
		p.Family = wire.RF_IPv4_UC
		hop, err := wire.NewPathAttributeNextHop(netip.IPv4Unspecified())
		if err != nil {
			return nil, err
		}
		p.Attrs = append(p.Attrs, hop)
		return p, nil
	}
	p.Family = wire.RF_IPv6_UC
	reach, err := wire.NewPathAttributeMpReachNLRI(wire.RF_IPv6_UC, []wire.PathNLRI{{NLRI: nlri}},
		netip.IPv6Unspecified())
	if err != nil {
		return nil, err
	}
	p.Attrs = append(p.Attrs, reach)
	return p, nil
}

// peerChanged takes what GoBGP says of a session. It is called by a goroutine of GoBGP.
func (s *Speaker) peerChanged(m *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if m.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	state := m.Peer.State.SessionState.String()
	s.mu.Lock()
	for _, session := range s.sessions {
		if !session.hears(m.Peer.State.NeighborAddress, at) {
			continue
		}
		up := m.Peer.State.SessionState == wire.BGP_FSM_ESTABLISHED
		if up != session.up {
			if !up {
				session.limit.ended(session.since, at)
			}
			switch {
			case up:
				session.opened = timersOf(session.peer)
			case endedByPrefixLimit(m):
				session.limit.exceeded(at)
				session.again = true
			case !session.peer.Restart && at.Sub(session.anew) >= anewEvery:
				session.again, session.anew = true, at
			}
			session.since = at
			s.logSession(session, up, m, at)
		} else if m.Peer.State.SessionState == wire.BGP_FSM_IDLE && m.Peer.State.DisconnectMessage != "" {
			s.setWhy(session, notOpened(m.Peer.State.DisconnectMessage))
		}
		session.up, session.state = up, state
	}
	s.mu.Unlock()
	s.changed.Raise()
}

// sameNeighbour compares addresses of which one may lack its zone.
func sameNeighbour(a, b netip.Addr) bool {
	if a.Zone() == "" || b.Zone() == "" {
		a, b = a.WithZone(""), b.WithZone("")
	}
	return a == b
}

func (s *Speaker) logSession(session *session, up bool, m *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if up {
		s.log.Info("BGP session is up", "peer", session.peer.Name, "address", session.address)
		session.why = ""
		return
	}
	session.why = cmp.Or(session.limit.why(at), m.Peer.State.DisconnectMessage)
	s.log.Warn("BGP session is down", "peer", session.peer.Name, "address", session.address, "why",
		cmp.Or(session.why, "not known"))
}

// Close implements announce.Speaker. Where the gateway forwards or is waited for, sessions with
// graceful restart are cut without a word, so that peers keep their routes for the next process;
// others are ended. Where it drains or has failed nobody follows, and all are ended: their routes
// go. A Cease does that to a session with graceful restart, too (RFC 4724, section 4). It would not
// between peers that both sent the N bit (RFC 8538), which this side never does.
func (s *Speaker) Close() {
	if s.server == nil {
		return
	}
	s.bfd.Close()
	kept := false
	for _, session := range s.sessions {
		if session.peer.Restart && s.gateway == announce.Yes {
			kept = true
		} else {
			s.deletePeer(context.Background(), session)
		}
	}
	if !kept {
		s.server.Stop() // waits until peers are told, for a second each at most
	}
}
