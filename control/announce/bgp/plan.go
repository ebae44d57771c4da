package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/control/announce"
	"sluice.dev/sluice/control/announce/kinds"
	"sluice.dev/sluice/control/announce/view"
)

// protocol is the name of this speaker.
const protocol = "bgp"

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326, section 3).
var gracefulShutdown = kinds.Community{Numbers: [3]uint32{65535, 0}}

// What makes a route the last resort, beside what makes it leave: routers compare the length of the
// AS path and then MED (RFC 4271, section 9.1.2.2) before they spread packets over equal routes. A
// path to a peer of the same AS cannot be longer, as the peer takes its own AS in it for a loop.
// The prepended path is longer than one by any other gateway of the same fabric: a Clos network of
// five stages has five hops.
const (
	lastResortPrepend = 8
	lastResortMED     = 1 // a route without MED has the lowest one, 0
)

// Route is a prefix and what of it each peer is told.
type Route struct {
	Prefix netip.Prefix
	To     map[string]Attributes // by the peer's name
}

// Attributes are those of a route that peers may be told differently.
type Attributes struct {
	LocalPref   uint32 // 0: none, or that of a route that leaves
	Communities []kinds.Community
	// Leaving: routers are asked to prefer others. LastResort: and so that no configuration of
	// theirs is needed.
	Leaving, LastResort bool
	Internal            bool // to a peer of the same AS: LocalPref is sent
}

// String describes them for people.
func (a Attributes) String() string {
	var parts []string
	if a.Internal && (a.LocalPref != 0 || a.Leaving) {
		parts = append(parts, fmt.Sprintf("local preference %d", a.LocalPref))
	}
	switch {
	case a.LastResort && a.Internal:
		parts = append(parts, fmt.Sprintf("MED %d", lastResortMED))
	case a.LastResort:
		parts = append(parts, fmt.Sprintf("AS path +%d", lastResortPrepend))
	}
	for _, c := range a.Communities {
		if c == gracefulShutdown {
			parts = append(parts, "GRACEFUL_SHUTDOWN")
		} else {
			parts = append(parts, c.String())
		}
	}
	return strings.Join(parts, " ")
}

// Plan is what is announced to whom.
type Plan struct {
	Peers  []*kinds.Peer // of this node, in order
	Routes []Route       // in order
	// Lines are by VIP, as Report has them, but for the state of sessions.
	Lines map[netip.Addr][]view.Line
}

// NewPlan derives it from a World. It is a pure function.
func NewPlan(w *announce.World) *Plan {
	p := &planner{World: w, routes: map[netip.Prefix]map[string]*Attributes{},
		Plan: Plan{Lines: map[netip.Addr][]view.Line{}}}
	for _, peer := range w.Set.Peers {
		if peer.NodeLabels.Match(w.Node.Labels) {
			p.Peers = append(p.Peers, peer)
		}
	}
	for i := range w.VIPs {
		p.vip(&w.VIPs[i])
	}
	for prefix, to := range p.routes {
		r := Route{prefix, map[string]Attributes{}}
		for name, a := range to {
			r.To[name] = p.finish(name, a)
		}
		p.Routes = append(p.Routes, r)
	}
	slices.SortFunc(p.Routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	p.extras()
	return &p.Plan
}

type planner struct {
	*announce.World
	Plan
	routes map[netip.Prefix]map[string]*Attributes
}

// vip adds the routes of one VIP.
func (p *planner) vip(s *announce.Standing) {
	line := func(to, state, why string, prefix netip.Prefix) {
		l := view.Line{Speaker: protocol, To: to, State: state, Why: why}
		if prefix.IsValid() {
			l.What = prefix.String()
		}
		p.Lines[s.VIP] = append(p.Lines[s.VIP], l)
	}
	var none netip.Prefix
	if len(p.Set.Advertisements) == 0 && len(p.Set.Layer2) > 0 && s.Pool != nil {
		return // nobody asks for BGP
	}
	if s.Grade == announce.No {
		line("", view.Not, s.Why, none)
		return
	}
	state := map[announce.Grade]string{announce.LastResort: view.LastResort, announce.Leaving: view.Leaving,
		announce.Yes: view.Announced}[s.Grade]
	some := false
	for _, a := range p.Set.Advertisements {
		if !p.selects(a, s) {
			continue
		}
		some = true
		prefix, why := prefixOf(a, s)
		told := false
		for _, peer := range p.Peers {
			if !a.ForPeer(peer.Name) {
				continue
			}
			told = true
			if !peer.Carries(s.VIP) {
				line(peer.Name, view.Not, "the session carries the other family alone: dualStackAddressFamily", none)
				continue
			}
			p.tell(prefix, peer, a, s.Grade)
			if !slices.ContainsFunc(p.Lines[s.VIP], func(l view.Line) bool {
				return l.To == peer.Name && l.What == prefix.String()
			}) {
				line(peer.Name, state, cmp.Or(why, s.Why), prefix)
			}
		}
		if !told {
			line("", view.Not, "BGPAdvertisement "+a.Name+" has no BGPPeer that is for this node", none)
		}
	}
	if !some {
		line("", view.Not, "no BGPAdvertisement is for pool "+s.Pool.Name+", this node and these Services", none)
	}
}

// selects reports whether an advertisement is about a VIP.
func (p *planner) selects(a *kinds.Advertisement, s *announce.Standing) bool {
	return a.NodeLabels.Match(p.Node.Labels) && a.ForPool(s.Pool) && a.ForServices(s.Labels)
}

// prefixOf is what is announced for a VIP. An aggregate must lie in the pool: it would take packets
// of addresses that are somebody else's.
func prefixOf(a *kinds.Advertisement, s *announce.Standing) (prefix netip.Prefix, why string) {
	if prefix = a.Prefix(s.VIP); prefix.IsSingleIP() || s.Pool.Covers(prefix) {
		return prefix, ""
	}
	return netip.PrefixFrom(s.VIP, s.VIP.BitLen()), fmt.Sprintf("not as %v, which pool %s does not cover", prefix,
		s.Pool.Name)
}

// tell adds what an advertisement says of a prefix. Of several for one peer the highest local
// preference counts, all communities do, and it leaves, or is the last resort, only if all VIPs in
// it do.
func (p *planner) tell(prefix netip.Prefix, peer *kinds.Peer, a *kinds.Advertisement, grade announce.Grade) {
	to := p.routes[prefix]
	if to == nil {
		to = map[string]*Attributes{}
		p.routes[prefix] = to
	}
	at := to[peer.Name]
	if at == nil {
		at = &Attributes{Leaving: true, LastResort: true}
		to[peer.Name] = at
	}
	at.Leaving = at.Leaving && grade <= announce.Leaving
	at.LastResort = at.LastResort && grade <= announce.LastResort
	at.LocalPref = max(at.LocalPref, a.LocalPref)
	for _, c := range a.Communities {
		if !slices.Contains(at.Communities, c) {
			at.Communities = append(at.Communities, c)
		}
	}
}

// finish orders communities, and adds what a route that leaves has: the community, and for iBGP
// the lowest preference (RFC 8326, section 4.1).
func (p *planner) finish(name string, a *Attributes) Attributes {
	f := *a
	if f.Leaving {
		if !slices.Contains(f.Communities, gracefulShutdown) {
			f.Communities = append(f.Communities, gracefulShutdown)
		}
		f.LocalPref = 0
	}
	i := slices.IndexFunc(p.Peers, func(k *kinds.Peer) bool { return k.Name == name })
	if f.Internal = p.Peers[i].MyASN == p.Peers[i].PeerASN; !f.Internal {
		f.LocalPref = 0 // RFC 4271, section 5.1.5: not to external peers
	}
	slices.SortFunc(f.Communities, func(a, b kinds.Community) int { return strings.Compare(a.String(), b.String()) })
	return f
}

// extras writes the attributes into the lines.
func (p *planner) extras() {
	at := map[string]map[string]Attributes{}
	for _, r := range p.Routes {
		at[r.Prefix.String()] = r.To
	}
	for _, lines := range p.Lines {
		for i := range lines {
			if a, there := at[lines[i].What][lines[i].To]; there {
				lines[i].With = a.String()
				// Another VIP of the aggregate may stay.
				if lines[i].State == view.LastResort && !a.LastResort {
					lines[i].State = view.Leaving
				}
				if lines[i].State == view.Leaving && !a.Leaving {
					lines[i].State = view.Announced
				}
			}
		}
	}
}
