package bgp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// routerID returns the router ID to use, which must not be another router's (RFC 6286, section
// 2.1): a BGPPeer's, the configured one, or one found here. One that was found stays for as long as
// GoBGP runs, since another one needs another start. One IPv4 address of the node after another
// will not do: it may be of an interface that all nodes have alike, as those of containers, caches
// and VIPs.
func (s *Speaker) routerID(w *announce.World, peers []*kinds.Peer) netip.Addr {
	for _, p := range peers {
		if p.RouterID.IsValid() {
			return p.RouterID
		}
	}
	if s.config.RouterID.IsValid() {
		return s.config.RouterID
	}
	if !s.found.IsValid() || s.server == nil {
		s.found = findRouterID(w, peers, sourceTo)
	}
	return s.found
}

// findRouterID returns the node's internal IPv4 address, the one by which packets to a peer leave,
// or an ID that follows from the node's name. Other hosts reach the node by the first two.
func findRouterID(w *announce.World, peers []*kinds.Peer, source func(netip.Addr) (netip.Addr, error)) netip.Addr {
	usable := func(a netip.Addr) bool { return a.Is4() && a.IsGlobalUnicast() }
	if usable(w.Node.Address) {
		return w.Node.Address
	}
	for _, p := range peers {
		a := p.Source
		if !a.IsValid() && p.Address.Is4() {
			a, _ = source(p.Address)
		}
		if usable(a) {
			return a
		}
	}
	h := fnv.New32a()
	h.Write([]byte(w.Node.Name))
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{cmp.Or(byte(sum>>24)&0x7f, 1), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// noteRouterIDs tells of BGPPeers whose routerID is not used, or which all nodes have.
func (s *Speaker) noteRouterIDs(peers []*kinds.Peer, used netip.Addr) {
	for _, p := range peers {
		switch {
		case !p.RouterID.IsValid():
		case p.RouterID != used:
			s.note(p.Ref, kinds.FieldNotDone, fmt.Sprintf("routerID: a node has one, and another BGPPeer says %v",
				used))
		case len(p.NodeLabels) == 0:
			s.note(p.Ref, kinds.Shared, fmt.Sprintf("routerID: all gateways have %v, and routers may take their "+
				"routes for those of one (RFC 6286): leave it out, or make a BGPPeer with nodeSelectors for each "+
				"gateway", used))
		}
	}
}
