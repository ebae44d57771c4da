package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// GoBGP identifies a session by the router's address, and an object by its name. So only one of
// several BGPPeers of this node with the same router has the session (claim), and the session stays
// if its BGPPeer is replaced by one with another name (rename).

// routerOf identifies the router of a peer.
func routerOf(p *kinds.Peer) string { return cmp.Or(p.Interface, p.Address.String()) }

// rename passes the session of a BGPPeer that is gone to another one with the same router that has
// none. Fields that differ count as edits, which inTurn applies if they need a new session.
func (s *Speaker) rename(w *announce.World) {
	own := peersOf(w)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, session := range maps.Clone(s.sessions) {
		gone := !slices.ContainsFunc(own, func(p *kinds.Peer) bool { return p.Name == name })
		if !gone || session.heldBy != "" {
			continue
		}
		var next *kinds.Peer
		for _, p := range own {
			if other := s.sessions[p.Name]; routerOf(p) == routerOf(session.peer) &&
				(other == nil || other.heldBy != "") && (next == nil || p.Created.Before(next.Created)) {
				next = p
			}
		}
		if next == nil {
			continue
		}
		s.log.Info("a BGPPeer takes over the session of one that is gone", "peer", next.Name, "from", name)
		p := *session.peer
		p.Name, p.Ref, p.Created = next.Name, next.Ref, next.Created
		session.peer, session.policyAddress = &p, netip.Addr{} // prepare makes the neighbour set of the name
		delete(s.sessions, name)
		s.sessions[p.Name] = session
	}
}

// claim decides which of the peers with the same router has the session: the one that has it, else
// the oldest. The others get a Problem, and no routes.
func (s *Speaker) claim(peers []*kinds.Peer) {
	s.mu.Lock()
	holds := map[*kinds.Peer]int{} // -1: it has the session
	for _, p := range peers {
		if session := s.sessions[p.Name]; session != nil && session.heldBy == "" {
			holds[p] = -1
		} else if session == nil {
			s.sessions[p.Name] = newSession(p)
		}
	}
	order := slices.Clone(peers)
	slices.SortStableFunc(order, func(a, b *kinds.Peer) int {
		return cmp.Or(cmp.Compare(holds[a], holds[b]), a.Created.Compare(b.Created))
	})
	holders := map[string]string{}
	for _, p := range order {
		session, router := s.sessions[p.Name], routerOf(p)
		session.heldBy = holders[router]
		holders[router] = cmp.Or(session.heldBy, p.Name)
	}
	s.mu.Unlock()
	for _, p := range peers {
		if err := s.sessions[p.Name].heldError(); err != nil {
			s.note(p.Ref, kinds.RouterTaken, fmt.Sprintf("%v, and this one is not used: remove one", err))
		}
	}
}

// heldError returns why the session has no routes if another BGPPeer has the router's, or nil.
func (s *session) heldError() error {
	if s.heldBy == "" {
		return nil
	}
	return fmt.Errorf("BGPPeer %s has the session with %s", s.heldBy, routerOf(s.peer))
}
