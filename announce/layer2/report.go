package layer2

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/view"
)

// Report implements announce.Speaker.
func (s *Speaker) Report() announce.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := announce.Report{Problems: slices.Clone(s.plan.Problems)}
	if s.refused != "" {
		r.Problems = append(r.Problems, kinds.Problem{About: kinds.OfNode(s.config.Name), Reason: kinds.Unread,
			Note: "the keys of layer 2 cannot be read, the previous ones stay in force: " + s.refused})
	}
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		l.mu.Lock()
		r.Peers = append(r.Peers, l.peers()...)
		l.mu.Unlock()
	}
	return r
}

// Lines implements announce.Speaker.
func (s *Speaker) Lines(vip netip.Addr) (list []view.Line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if line, there := s.plan.Lines[vip]; there {
		list = append(list, line)
	}
	if len(s.links) == 0 {
		return list
	}
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		l.mu.Lock()
		i, there := slices.BinarySearchFunc(l.vips, vip, func(w LinkVIP, a netip.Addr) int { return w.VIP.Compare(a) })
		if there {
			list = append(list, l.line(l.vips[i], now))
		}
		l.mu.Unlock()
	}
	return list
}

// peers returns the other gateways of the link.
func (l *link) peers() (list []view.Peer) {
	for _, m := range l.members.List() {
		p := view.Peer{Speaker: view.Layer2, Name: l.name + "/" + m.Name, Address: m.MAC.String(), Up: m.Alive,
			State: "dead", Since: &m.Since, Routes: m.VIPs, Why: m.Why}
		switch {
		case m.Alive && m.Joining:
			p.State = "joining"
		case m.Alive:
			p.State = "alive"
		case m.Returning:
			p.State = "returning"
		}
		if m.Alive && !m.HearsUs {
			p.Why = "it does not hear this gateway"
		}
		list = append(list, p)
	}
	return list
}

// line returns the state of a VIP on the link, its owner, and why.
func (l *link) line(w LinkVIP, now time.Time) view.Line {
	owner := l.members.Owner(w.VIP)
	line := view.Line{Speaker: view.Layer2, To: l.name, With: owner.Why(), State: view.Standby}
	if l.sockets == nil {
		line.State, line.With, line.Why = view.Not, "", cmp.Or(l.why, "the link is not open yet")
		return line
	}
	if mac := l.members.MACOf(owner.Name); mac != (frame.MAC{}) {
		line.What = mac.String()
	}
	joins, lists := l.members.Joins(now)
	switch {
	case owner.Name == l.config.Name:
		line.State, line.Why, line.What = view.Announced, w.Why, l.sockets.mac.String()
		switch w.Grade {
		case announce.Leaving:
			line.State = view.Leaving
		case announce.LastResort:
			line.State = view.LastResort
		}
		if d := l.disputeOf(w.VIP, now); d != nil {
			line.Why = fmt.Sprintf("%s at %v also claims it: %d times, last %v ago",
				cmp.Or(d.by, "another host"), d.mac, d.count, now.Sub(d.last).Round(time.Second))
		}
	case w.Grade == announce.No:
		line.State, line.Why = view.Not, w.Why
	case w.Grade == announce.LastResort:
		line.Why = w.Why
	case !joins.IsZero():
		line.Why = "this gateway joins the link until " + joins.Format(time.TimeOnly)
		if len(lists) > 0 {
			line.Why += " at the latest: it waits for the VIPs of " + strings.Join(lists, ", ")
		}
		if owner.Name == "" {
			line.State = view.Waiting
		}
	}
	return line
}
