package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/view"
)

// Report implements announce.Speaker.
func (s *Speaker) Report() announce.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := announce.Report{Problems: slices.Clone(s.problems)}
	for _, name := range slices.Sorted(maps.Keys(s.sessions)) {
		session := s.sessions[name]
		p := view.Peer{Speaker: protocol, Name: name, ASN: session.peer.PeerASN, Up: session.up,
			State: cmp.Or(strings.TrimPrefix(session.state, "BGP_FSM_"), "none"), Routes: s.table.counts[name],
			Address: cmp.Or(session.peer.Interface, session.address.String())}
		if since := session.since; !since.IsZero() {
			p.Since = &since
		}
		if !session.up {
			p.Why = session.why
		} else {
			p.Why = s.pending(session)
		}
		if session.peer.BFD != nil {
			p.BFD = s.reportBFD(session, &r)
		}
		r.Peers = append(r.Peers, p)
		if p, ok := session.limitProblem(); ok {
			r.Problems = append(r.Problems, p)
		}
	}
	return r
}

// pending returns which edited fields of an established session's peer are not in force, and when
// they will be; "" if all are.
func (s *Speaker) pending(session *session) string {
	var parts []string
	if fields := s.waiting[session.peer.Name]; fields != "" {
		parts = append(parts, fmt.Sprintf("a new session begins at %s, in this gateway's turn, as these were "+
			"edited: %s", s.turn.UTC().Format(time.RFC3339), fields))
	}
	if p, opened := session.peer, session.opened; opened.hold != p.Hold || opened.keepalive != p.Keepalive {
		parts = append(parts, fmt.Sprintf("holdTime %v and keepaliveTime %v are for the next session, %v and %v are "+
			"in force", p.Hold, p.Keepalive, opened.hold, opened.keepalive))
	}
	return strings.Join(parts, "; ")
}

// Lines implements announce.Speaker.
func (s *Speaker) Lines(vip netip.Addr) []view.Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.table.vips[vip]
	if p == nil {
		p = s.table.sources[vip]
	}
	if p == nil {
		return nil
	}
	lines := slices.Clone(p.shown)
	for i := range lines {
		s.withSession(&lines[i], vip)
	}
	return lines
}

// withSession adds to a line whether its peer gets the route.
func (s *Speaker) withSession(l *view.Line, vip netip.Addr) {
	session := s.sessions[l.To]
	if l.State == view.Not || session == nil {
		return
	}
	if _, err := session.hop(vip.Is4()); err != nil {
		l.State, l.Why = view.Not, err.Error()
		return
	}
	if !session.up {
		l.State, l.Why = view.Waiting, "the session is not up"
		if session.why != "" {
			l.Why += ": " + session.why
		}
	}
}
