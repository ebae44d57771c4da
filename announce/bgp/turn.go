package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/bfd"
	"sluice.dev/sluice/announce/kinds"
)

// An edit reaches all gateways at once. If it needs a new session, the router has no route to the
// gateway for up to 2 s in between. So gateways apply it in turns: each has one turn of turnLength
// in each cycle of the clock.
const (
	turns      = 32
	turnLength = 4 * time.Second
)

// turnOf returns when the next turn of a gateway begins, at most turns times turnLength from now.
// Gateways whose router IDs differ in the last five bits, as consecutive addresses do, have turns
// that do not overlap, if their clocks differ by less than 2 s.
func turnOf(routerID netip.Addr, now time.Time) time.Time {
	octets := routerID.AsSlice()
	cycle := now.Truncate(turns * turnLength)
	at := cycle.Add(time.Duration(octets[len(octets)-1]%turns) * turnLength)
	if at.Before(now) {
		at = at.Add(turns * turnLength)
	}
	return at
}

// opening are the fields of a BGPPeer that take effect only with a new session: the ends of the TCP
// connection, its MD5 key and its TTL, and the parameters of OPEN except the hold time.
var opening = []struct {
	field string
	of    func(p *kinds.Peer) any
}{
	{"myASN", func(p *kinds.Peer) any { return p.MyASN }},
	{"peerASN", func(p *kinds.Peer) any { return p.PeerASN }},
	{"peerAddress", func(p *kinds.Peer) any { return p.Address }},
	{"interface", func(p *kinds.Peer) any { return p.Interface }},
	{"sourceAddress", func(p *kinds.Peer) any { return p.Source }},
	{"peerPort", func(p *kinds.Peer) any { return p.Port }},
	{"password", func(p *kinds.Peer) any { return p.Password }},
	{"enableGracefulRestart", func(p *kinds.Peer) any { return p.Restart }},
	{"ebgpMultiHop", func(p *kinds.Peer) any { return p.MultiHop }},
	{"dualStackAddressFamily", func(p *kinds.Peer) any { return p.Interface != "" || p.DualStack }},
}

// reopens returns the differing fields that need a new session.
func reopens(a, b *kinds.Peer) (fields []string) {
	for _, o := range opening {
		if o.of(a) != o.of(b) {
			fields = append(fields, o.field)
		}
	}
	return fields
}

// reopens returns the edited fields for which the session must be replaced. A removed BFD profile
// is one if BFD is up: BIRD and FRR end the BGP session when BFD signals AdminDown.
func (s *Speaker) reopens(session *session, p *kinds.Peer) []string {
	fields := reopens(session.peer, p)
	if session.peer.BFD == nil || p.BFD != nil || p.MultiHop || s.bfd == nil {
		return fields
	}
	if status, _ := s.bfd.Status(session.address); status.State == bfd.Up {
		fields = append(fields, "bfdProfile")
	}
	return fields
}

// goesOn returns the peer before the edit, with those edits that need no new session.
func goesOn(before, after *kinds.Peer) *kinds.Peer {
	p := *before
	p.Ref, p.Created, p.NodeLabels, p.RouterID = after.Ref, after.Created, after.NodeLabels, after.RouterID
	p.Hold, p.Keepalive, p.Connect = after.Hold, after.Keepalive, after.Connect
	if after.BFD != nil {
		p.BFD = after.BFD
	}
	return &p
}

// inTurn returns w with the peers of established sessions as they were before an edit that needs a
// new session, until it is this gateway's turn. Sessions that are not up use the edit at once.
func (s *Speaker) inTurn(w *announce.World, now time.Time) *announce.World {
	peers, waiting := slices.Clone(w.Set.Peers), map[string]string{}
	s.mu.Lock()
	defer s.mu.Unlock()
	up := false
	var own []*kinds.Peer // of this node
	for i, p := range peers {
		if !p.NodeLabels.Match(w.Node.Labels) {
			continue
		}
		own = append(own, p)
		session := s.sessions[p.Name]
		if session == nil || !session.up {
			continue
		}
		up = true
		if fields := s.reopens(session, p); len(fields) > 0 {
			waiting[p.Name] = strings.Join(fields, ", ")
			peers[i] = goesOn(session.peer, p)
		}
	}
	if up && s.server != nil && s.routerID(w, own) != s.identity.routerID {
		for name, session := range s.sessions {
			if session.up {
				waiting[name] = strings.TrimPrefix(waiting[name]+", routerID", ", ")
			}
		}
	}
	switch {
	case len(waiting) == 0:
		s.turn, s.waiting = time.Time{}, nil
		return w
	// The turn has passed because this process did not run, or the clock was set back.
	case s.turn.IsZero() || now.Sub(s.turn) >= turnLength/2 || s.turn.Sub(now) > turns*turnLength:
		s.turn = turnOf(s.identity.routerID, now)
		s.log.Info("BGP sessions begin again in this gateway's turn", "at", s.turn.UTC(), "because of", waiting)
	}
	if !now.Before(s.turn) {
		s.turn, s.waiting = time.Time{}, nil
		return w
	}
	s.waiting = waiting
	set := *w.Set
	set.Peers = peers
	held := *w
	held.Set = &set
	return &held
}
