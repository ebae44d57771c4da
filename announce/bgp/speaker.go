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
	// RouterID is this node's, an IPv4 address; not valid: findRouterID finds one. A BGPPeer may
	// have another.
	RouterID netip.Addr
	// Restarting: the previous process may have announced routes, which peers with graceful restart
	// keep.
	Restarting bool
}

// Speaker is a BGP speaker.
type Speaker struct {
	config  Config
	log     *slog.Logger
	changed wake.Flag

	// Only the goroutine that calls Apply uses the fields up to mu.
	server   *server.BgpServer // nil before the first peer
	bfd      *bfd.Endpoint     // nil: server is nil
	bfdPort  uint16            // 0: the port of RFC 5881
	identity identity          // of server
	foundID  netip.Addr        // result of findRouterID
	variants map[string]*variant
	next     uint32
	paths    map[netip.Prefix]*variant
	gateway  announce.Grade // of the last World
	// turn is when established sessions begin again to apply edits; zero: no edit needs that.
	// waiting has the edited fields by the peer's name.
	turn    time.Time
	waiting map[string]string
	number  uint64                // of the last World
	due     map[netip.Prefix]bool // routes that may differ from table
	key     string                // sessionsKey of the last time

	mu       sync.Mutex // guards the fields below
	sessions map[string]*session
	table    *table
	problems []kinds.Problem
}

// identity is the part of a server's configuration that applies to all peers.
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

// Apply implements announce.Speaker. The next call retries failed operations.
func (s *Speaker) Apply(w *announce.World) { s.apply(w, time.Now()) }

func (s *Speaker) apply(w *announce.World, now time.Time) {
	ctx := context.Background()
	s.rename(w)
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
	// Remove old sessions first, so that their addresses are free. Add routes before new sessions,
	// so that a restarting session sends all of them at once.
	s.removePeers(ctx, peers)
	s.beginAgain(ctx)
	s.answers(ctx)
	s.prepare(ctx, peers)
	s.leaveOut(w, newArrivals(w))
	if key := s.sessionsKey(); key != s.key {
		s.key = key
		s.allDue()
		s.changed.Raise() // the result of Lines may differ
	}
	if err := s.applyRoutes(ctx); err != nil {
		s.log.Error("routes cannot be updated; it is tried again", "error", err)
	}
	s.addPeers(ctx, peers)
	s.applyBFD()
}

// answers waits until GoBGP's main goroutine processes a request. Without changes this is the only
// request: if GoBGP has stalled, the caller also stalls, and its heartbeat shows that.
func (s *Speaker) answers(ctx context.Context) {
	if _, err := s.server.GetBgp(ctx, &api.GetBgpRequest{}); err != nil {
		s.log.Warn("GoBGP does not answer", "error", err)
	}
}

// follow updates the table, and marks changed routes as due.
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

// allDue marks all routes as due, including those to remove.
func (s *Speaker) allDue() {
	for prefix := range s.table.routes {
		s.due[prefix] = true
	}
	for prefix := range s.paths {
		s.due[prefix] = true
	}
}

// ensureServer starts GoBGP for the first peer. Another router ID needs a restart of GoBGP, which
// ends all sessions: that waits for this gateway's turn.
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

// learnNothing makes GoBGP reject the routes of peers. Local routes pass the same policy.
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

// removePeers ends sessions that are no longer wanted, or whose edits need a new session.
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

// beginAgain removes ended sessions from GoBGP, so that they begin again at once. It keeps sessions
// with graceful restart: their peers have kept the routes, and GoBGP needs its state for that. But
// it removes sessions that the prefix limit ended: with graceful restart, GoBGP would keep the
// peer's routes and never connect again.
func (s *Speaker) beginAgain(ctx context.Context) {
	s.mu.Lock()
	var ended []*session
	for _, session := range s.sessions {
		if session.restartNeeded && !session.up {
			ended = append(ended, session)
		}
		session.restartNeeded = false
	}
	s.mu.Unlock()
	for _, session := range ended {
		s.deletePeer(ctx, session)
	}
}

// deletePeer removes a session from GoBGP, which notifies the peer (RFC 4486): the peer withdraws
// the routes at once. Later events about the session are ignored.
func (s *Speaker) deletePeer(ctx context.Context, session *session) {
	if session.begun.IsZero() {
		return
	}
	s.mu.Lock()
	session.begun, session.up, session.state = time.Time{}, false, ""
	s.mu.Unlock()
	err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: session.address.String()})
	if err != nil {
		s.log.Warn("a session cannot be ended", "peer", session.peer.Name, "error", err)
	}
}

// prepare updates the state of each peer: its address, and the neighbour set by which policies name
// it.
func (s *Speaker) prepare(ctx context.Context, peers []*kinds.Peer) {
	s.claim(peers)
	for _, p := range peers {
		session := s.sessions[p.Name]
		s.mu.Lock()
		session.peer = p // perhaps a newer version
		if err := session.heldError(); err != nil {
			session.why = err.Error()
			s.mu.Unlock()
			continue
		}
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
		named, ours := session.policyAddress, session.familyHops
		if !address.IsValid() {
			ours = nil
		} else {
			if hops, err := nextHops(p, address); err == nil {
				ours = hops
			} else {
				s.log.Warn("next hops of a peer cannot be read, the previous ones are used", "peer", p.Name,
					"error", err)
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
		session.address, session.policyAddress, session.familyHops = address, named, ours
		if session.begun.IsZero() {
			session.why = why
		}
		s.mu.Unlock()
	}
}

// leaveOut finds the sessions whose routes would lead to an interface that the gateway does not
// serve. A session for which that cannot be found keeps its previous result.
func (s *Speaker) leaveOut(w *announce.World, a *arrivals) {
	for _, session := range s.sessions {
		name := session.notServed
		if session.address.IsValid() {
			if at, err := a.notServedOf(session.peer, session.address); err == nil {
				name = at
			} else {
				s.log.Warn("the interface at which packets arrive cannot be found, the previous one is used",
					"peer", session.peer.Name, "error", err)
			}
		}
		s.mu.Lock()
		session.notServed = name
		s.mu.Unlock()
		if p, ok := session.notServedProblem(w); ok {
			s.note(p.About, p.Reason, p.Note)
		}
	}
}

// nameNeighbour sets the neighbour set with a peer's address. It must exist before the session
// begins: GoBGP does not apply policies again to routes from a neighbour that was in no set.
func (s *Speaker) nameNeighbour(ctx context.Context, name string, address netip.Addr) error {
	return s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{Replace: true, DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: neighbours(name),
		List: []string{netip.PrefixFrom(address.WithZone(""), address.BitLen()).String()},
	}})
}

// addPeers begins sessions, and updates the timers of existing ones.
func (s *Speaker) addPeers(ctx context.Context, peers []*kinds.Peer) {
	for _, p := range peers {
		session := s.sessions[p.Name]
		if !session.begun.IsZero() && session.timers != timersOf(p) {
			s.updateTimers(ctx, session)
		}
		s.mu.Lock()
		waits := session.limit.waits(time.Now())
		s.mu.Unlock()
		if !session.begun.IsZero() || !session.address.IsValid() || session.address != session.policyAddress || waits ||
			session.heldBy != "" {
			continue
		}
		s.mu.Lock()
		session.begun = time.Now() // GoBGP's events may come before AddPeer returns
		s.mu.Unlock()
		err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: session.configuration(s.config.Restarting)})
		session.timers = timersOf(p)
		s.mu.Lock()
		if session.why = ""; err != nil {
			session.begun, session.up, session.state, session.why = time.Time{}, false, "", err.Error()
			s.log.Warn("a session cannot begin, and is tried again", "peer", p.Name, "error", err)
		} else if session.state == "" { // no event came before AddPeer returned
			session.state = "IDLE"
		}
		s.mu.Unlock()
	}
}

// updateTimers sets the timers of an existing session in GoBGP. The peer gets the hold time in the
// next OPEN. If any other field differed, GoBGP would restart the session.
func (s *Speaker) updateTimers(ctx context.Context, session *session) {
	_, err := s.server.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: session.configuration(s.config.Restarting)})
	if err != nil {
		s.log.Warn("timers of a session cannot be updated; it is tried again", "peer", session.peer.Name, "error",
			err)
		return
	}
	session.timers = timersOf(session.peer)
}

// applyRoutes updates the due routes in GoBGP. A route whose variant cannot be made stays due.
func (s *Speaker) applyRoutes(ctx context.Context) error {
	var errs []error
	var add, gone []*apiutil.Path
	next := map[netip.Prefix]*variant{} // variants of the paths in add
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

// setPath records the variant of a path in GoBGP; nil: GoBGP has no path.
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

// peerChanged processes GoBGP's event about a session. GoBGP's goroutine calls it.
func (s *Speaker) peerChanged(m *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if m.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	state := m.Peer.State.SessionState.String()
	s.mu.Lock()
	for _, session := range s.sessions {
		if !session.concerns(m.Peer.State.NeighborAddress, at) {
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
				session.restartNeeded = true
			case !session.peer.Restart && at.Sub(session.lastRestart) >= restartEvery:
				session.restartNeeded, session.lastRestart = true, at
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

// sameNeighbour compares addresses; if one lacks its zone, zones are ignored.
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

// Close implements announce.Speaker. If the gateway forwards or is held, it closes sessions with
// graceful restart without a NOTIFICATION, so that peers keep their routes for the next process,
// and ends the others. If the gateway drains or has failed, no process follows: it ends all
// sessions, and their routes go. A Cease has that effect also on a session with graceful restart
// (RFC 4724, section 4). It would not between peers that both sent the N bit (RFC 8538), which this
// side never sends.
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
		s.server.Stop() // waits for the NOTIFICATIONs, at most a second each
	}
}
