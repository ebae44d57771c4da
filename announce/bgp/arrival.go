package bgp

import (
	"fmt"
	"net/netip"
	"strings"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/links"
)

// arrivals finds the interface at which packets to announced VIPs arrive. The zero value finds
// none.
type arrivals struct {
	links     []links.Link
	unread    error // the links cannot be read
	notServed map[string]bool
	source    func(netip.Addr) (netip.Addr, error) // sourceTo, or a fake in tests
}

func newArrivals(w *announce.World) *arrivals {
	a := &arrivals{source: sourceTo}
	if len(w.Interfaces) == 0 {
		return a
	}
	if a.links, a.unread = links.List(); a.unread == nil {
		a.notServed = links.NotServed(a.links, w.Interfaces)
	}
	return a
}

// notServedOf returns the interface at which packets to the next hop arrive, if the gateway does
// not serve it; "" if it does, or if that is unknown. The next hop is an address of the session's
// interface (nextHops), so packets to it arrive there. Two cases are unknown: an address without a
// network, because routes of any interface may lead to it, and a router on this node.
func (a *arrivals) notServedOf(p *kinds.Peer, router netip.Addr) (string, error) {
	if a.unread != nil || len(a.notServed) == 0 {
		return "", a.unread
	}
	if p.Interface != "" {
		if a.notServed[p.Interface] {
			return p.Interface, nil
		}
		return "", nil
	}
	local := p.Source
	if !local.IsValid() {
		var err error
		if local, err = a.source(router); err != nil {
			return "", err
		}
	}
	found := ""
	for i := range a.links {
		l := &a.links[i]
		for _, n := range l.Networks {
			switch {
			case n.Addr() == router.WithZone(""):
				return "", nil
			case n.Addr() == local.WithZone("") && !n.IsSingleIP() && a.notServed[l.Name]:
				found = l.Name
			}
		}
	}
	return found, nil
}

// notServedError returns why nothing is announced to a peer, or nil.
func (s *session) notServedError() error {
	if s.notServed == "" {
		return nil
	}
	return fmt.Errorf("the next hop is at interface %s, which the gateway does not serve", s.notServed)
}

// notServedProblem returns the Problem of the BGPPeer; ok is false if the gateway serves the
// interface.
func (s *session) notServedProblem(w *announce.World) (p kinds.Problem, ok bool) {
	return kinds.Problem{About: s.peer.Ref, Reason: kinds.NotServed,
		Note: fmt.Sprintf("node %s announces nothing to this peer: the session, and so the next hop, is at interface "+
			"%s, and the gateway serves %s; add it to interfaces of the gateway's configuration, or peer by "+
			"another one",
			w.Node.Name, s.notServed, strings.Join(w.Interfaces, ", "))}, s.notServed != ""
}
