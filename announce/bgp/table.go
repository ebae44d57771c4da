package bgp

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/view"
)

// table has all routes with their attributes per peer. It is updated for single VIPs: the cost of a
// change depends on the changed VIPs, and on other VIPs of an aggregate whose attributes change. It
// has no clock, no network and no lock.
type table struct {
	world *announce.World // for the parts that all VIPs share
	peers []*kinds.Peer   // of this node, in order
	vips  map[netip.Addr]*planned
	// sources are the source addresses of the gateway's group: they change with the whole table.
	sources map[netip.Addr]*planned
	routes  map[netip.Prefix]*route
	counts  map[string]int // of routes, by the peer's name
}

// planned is the part of a table that depends only on one VIP's verdict.
type planned struct {
	lines  []plannedLine
	causes []cause
	shown  []view.Line // lines, with the attributes of their routes
}

// plannedLine is a line and its prefix; not valid if the line has none.
type plannedLine struct {
	view.Line
	prefix netip.Prefix
}

// cause is one reason to announce a VIP to a peer, as part of a prefix.
type cause struct {
	prefix netip.Prefix
	reason
}

// reason determines attributes of a route. Many VIPs of an aggregate have the same one.
type reason struct {
	peer          *kinds.Peer
	advertisement *kinds.Advertisement
	grade         announce.Grade
	rank          int
}

// route is a prefix, with the VIPs in it.
type route struct {
	vips    map[netip.Addr]*planned
	reasons map[reason]int // how many VIPs give each
	to      map[string]Attributes
}

// peersOf returns the BGPPeers of this node, in order.
func peersOf(w *announce.World) (list []*kinds.Peer) {
	for _, p := range w.Set.Peers {
		if p.NodeLabels.Match(w.Node.Labels) {
			list = append(list, p)
		}
	}
	return list
}

func newTable(w *announce.World) *table {
	t := &table{world: w, peers: peersOf(w), vips: map[netip.Addr]*planned{}, sources: map[netip.Addr]*planned{},
		routes: map[netip.Prefix]*route{}, counts: map[string]int{}}
	dirty, show := map[netip.Prefix]bool{}, map[netip.Addr]*planned{}
	for _, s := range w.VIPs {
		show[s.VIP] = t.add(s, dirty)
	}
	t.update(dirty, show)
	clear(dirty)
	clear(show)
	for _, s := range w.Sources { // one may be a VIP, too, which is not announced then
		show[s.VIP] = t.add(s, dirty)
	}
	t.update(dirty, show)
	return t
}

// follow takes a World that differs from the previous one only in the verdicts about some VIPs. It
// returns the prefixes whose attributes changed.
func (t *table) follow(w *announce.World, some []netip.Addr) (changed []netip.Prefix) {
	t.world = w
	dirty, show := map[netip.Prefix]bool{}, map[netip.Addr]*planned{}
	for _, vip := range some {
		t.remove(vip, dirty)
		if s := w.Find(vip); s != nil {
			show[vip] = t.add(s, dirty)
		}
	}
	return t.update(dirty, show)
}

// update updates the dirty routes and the lines of VIPs. It returns the prefixes whose attributes
// changed.
func (t *table) update(dirty map[netip.Prefix]bool, show map[netip.Addr]*planned) (changed []netip.Prefix) {
	for prefix := range dirty {
		r := t.routes[prefix]
		if len(r.vips) == 0 {
			delete(t.routes, prefix)
		}
		to := t.attributes(r)
		if maps.EqualFunc(to, r.to, Attributes.equal) {
			continue
		}
		changed = append(changed, prefix)
		for name := range r.to {
			t.counts[name]--
		}
		for name := range to {
			t.counts[name]++
		}
		r.to = to
		maps.Copy(show, r.vips)
	}
	for _, p := range show {
		t.show(p)
	}
	return changed
}

// remove removes a VIP, and marks its prefixes as dirty.
func (t *table) remove(vip netip.Addr, dirty map[netip.Prefix]bool) {
	p := t.vips[vip]
	if p == nil {
		return
	}
	delete(t.vips, vip)
	for _, one := range p.causes {
		r := t.routes[one.prefix]
		delete(r.vips, vip)
		if r.reasons[one.reason]--; r.reasons[one.reason] == 0 {
			delete(r.reasons, one.reason)
		}
		dirty[one.prefix] = true
	}
}

// add plans a VIP that is not in the table, and marks its prefixes as dirty.
func (t *table) add(s *announce.VIPVerdict, dirty map[netip.Prefix]bool) *planned {
	p := t.planVIP(s)
	if s.Source {
		t.sources[s.VIP] = p
	} else {
		t.vips[s.VIP] = p
	}
	for _, one := range p.causes {
		r := t.routes[one.prefix]
		if r == nil {
			r = &route{vips: map[netip.Addr]*planned{}, reasons: map[reason]int{}}
			t.routes[one.prefix] = r
		}
		r.vips[s.VIP] = p
		r.reasons[one.reason]++
		dirty[one.prefix] = true
	}
	return p
}

// planVIP plans one VIP.
func (t *table) planVIP(s *announce.VIPVerdict) *planned {
	p := &planned{}
	line := func(to, state, why string, prefix netip.Prefix) {
		l := plannedLine{view.Line{Speaker: protocol, To: to, State: state, Why: why}, prefix}
		if prefix.IsValid() {
			l.What = prefix.String()
		}
		p.lines = append(p.lines, l)
	}
	var none netip.Prefix
	set := t.world.Set
	if len(set.Advertisements) == 0 && len(set.Layer2) > 0 && (s.Pool != nil || s.Source) {
		return p // no object asks for BGP
	}
	if s.Grade == announce.No {
		line("", view.Not, s.Why, none)
		return p
	}
	state := map[announce.Grade]string{announce.LastResort: view.LastResort, announce.Leaving: view.Leaving,
		announce.Yes: view.Announced}[s.Grade]
	some := false
	for _, a := range set.Advertisements {
		if !a.NodeLabels.Match(t.world.Node.Labels) || !a.ForPool(s.Pool) || !a.ForServices(s.Labels) {
			continue
		}
		some = true
		prefix, why := prefixOf(a, s)
		here := false
		for _, peer := range t.peers {
			if !a.ForPeer(peer.Name) {
				continue
			}
			here = true
			if !peer.Carries(s.VIP) {
				line(peer.Name, view.Not, "the session carries the other family alone: dualStackAddressFamily", none)
				continue
			}
			p.causes = append(p.causes, cause{prefix, reason{peer, a, s.Grade, s.Rank}})
			if !slices.ContainsFunc(p.lines, func(l plannedLine) bool {
				return l.To == peer.Name && l.prefix == prefix
			}) {
				line(peer.Name, state, cmp.Or(why, s.Why), prefix)
			}
		}
		if !here {
			line("", view.Not, "BGPAdvertisement "+a.Name+" has no BGPPeer that is for this node", none)
		}
	}
	switch {
	case some:
	case s.Pool == nil:
		line("", view.Not, "no BGPAdvertisement is for this node and all pools and Services", none)
	case s.Source:
		line("", view.Not, "no BGPAdvertisement is for pool "+s.Pool.Name+", this node and all Services", none)
	default:
		line("", view.Not, "no BGPAdvertisement is for pool "+s.Pool.Name+", this node and these Services", none)
	}
	return p
}

// attributes returns the attributes of a route for each peer. If several advertisements are for one
// peer, the highest local preference and all communities count. The route leaves, or is the last
// resort, only if all VIPs in it do. A leaving route has the community GRACEFUL_SHUTDOWN, and for
// iBGP the lowest preference (RFC 8326, section 4.1).
func (t *table) attributes(r *route) map[string]Attributes {
	to := map[string]Attributes{}
	for one := range r.reasons {
		a, there := to[one.peer.Name]
		if !there {
			a = Attributes{Leaving: true, LastResort: true, Internal: one.peer.MyASN == one.peer.PeerASN,
				Rank: one.rank}
		}
		a.Leaving = a.Leaving && one.grade <= announce.Leaving
		a.LastResort = a.LastResort && one.grade <= announce.LastResort
		a.Rank = min(a.Rank, one.rank)
		a.LocalPref = max(a.LocalPref, one.advertisement.LocalPref)
		for _, c := range one.advertisement.Communities {
			if !slices.Contains(a.Communities, c) {
				a.Communities = append(a.Communities, c)
			}
		}
		to[one.peer.Name] = a
	}
	for name, a := range to {
		if a.Leaving {
			if !slices.Contains(a.Communities, gracefulShutdown) {
				a.Communities = append(a.Communities, gracefulShutdown)
			}
			a.LocalPref = 0
		}
		if !a.Internal {
			a.LocalPref = 0 // RFC 4271, section 5.1.5: not to external peers
		}
		slices.SortFunc(a.Communities, func(a, b kinds.Community) int {
			return strings.Compare(a.String(), b.String())
		})
		to[name] = a
	}
	return to
}

func (a Attributes) equal(b Attributes) bool {
	return a.LocalPref == b.LocalPref && slices.Equal(a.Communities, b.Communities) && a.Leaving == b.Leaving &&
		a.LastResort == b.LastResort && a.Internal == b.Internal && a.Rank == b.Rank
}

// show sets a VIP's shown lines: its lines with the attributes of their routes.
func (t *table) show(p *planned) {
	p.shown = make([]view.Line, len(p.lines))
	for i := range p.lines {
		l := p.lines[i].Line
		if r := t.routes[p.lines[i].prefix]; r != nil {
			a := r.to[l.To]
			l.With = a.String()
			// Another VIP of the aggregate may keep the route.
			if l.State == view.LastResort && !a.LastResort {
				l.State = view.Leaving
			}
			if l.State == view.Leaving && !a.Leaving {
				l.State = view.Announced
			}
		}
		p.shown[i] = l
	}
}
