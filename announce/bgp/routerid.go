package bgp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// routerID returns the router ID to use, which must be unique (RFC 6286, section 2.1): the
// BGPPeer's, the configured one, or the result of findRouterID. The latter stays as long as GoBGP
// runs, because another ID needs a restart of GoBGP. An arbitrary IPv4 address of the node is not
// suitable: all nodes may have the same on an interface, such as those of containers, caches and
// VIPs.
func (s *Speaker) routerID(w *announce.World, peers []*kinds.Peer) netip.Addr {
	for _, p := range peers {
		if p.RouterID.IsValid() {
			return p.RouterID
		}
	}
	if s.config.RouterID.IsValid() {
		return s.config.RouterID
	}
	if !s.foundID.IsValid() || s.server == nil {
		s.foundID = findRouterID(w, peers, sourceTo)
	}
	return s.foundID
}

// findRouterID returns the node's internal IPv4 address, else the source address of packets to a
// peer, else a hash of the node's name. The first two are unique because other hosts use them.
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

// noteRouterIDs notes BGPPeers whose routerID is not used or is the same on all nodes.
func (s *Speaker) noteRouterIDs(peers []*kinds.Peer, used netip.Addr) {
	for _, p := range peers {
		switch {
		case !p.RouterID.IsValid():
		case p.RouterID != used:
			s.note(p.Ref, kinds.FieldNotDone, fmt.Sprintf("routerID: a node has only one, and another BGPPeer has %v",
				used))
		case len(p.NodeLabels) == 0:
			s.note(p.Ref, kinds.Shared, fmt.Sprintf("routerID: all gateways have %v, and routers may take their "+
				"routes for those of one (RFC 6286): leave it out, or make a BGPPeer with nodeSelectors for each "+
				"gateway", used))
		}
	}
}
