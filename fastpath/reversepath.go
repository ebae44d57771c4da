package fastpath

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// offPath reports whether a reply did not arrive from the interface and VLAN of the next hop to its
// flow's backend, or from the kernel if packets to it go there (RFC 3704 section 2.2, strict
// reverse path forwarding). If the next hop is not known, offPath returns false for an established
// flow, and true for others: no packet can have reached the backend, so the reply is not from it.
func (w *Worker) offPath(p *packet, ref flowtable.Ref) bool {
	w.planner.Bind(ref)
	var toBackend header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	id := w.nextHop(w.flows.Flow(ref), flowtable.ClientSide, &toBackend.Dst)
	hop := w.c.Hops.Hop(id)
	switch {
	case id == 0 || hop == nil:
		return !w.flows.Flow(ref).State().Assured()
	}
	return !w.cameFrom(p.origin, hop, p.VLAN[:p.VLANs])
}

// cameFrom reports whether a packet of this origin, with these VLAN tags, arrived from the
// interface and VLANs of a hop.
func (w *Worker) cameFrom(o origin, hop *nexthop.Hop, tags []uint16) bool {
	if hop.Kind == nexthop.OnLink {
		return !o.kernel && w.c.Interfaces[o.link] == int(hop.Link) && sameVLANs(tags, hop)
	}
	return hop.Kind == nexthop.Kernel && o.kernel
}

// sameVLANs reports whether the tags have the VLAN IDs of a hop. A tag of VLAN 0 carries only a
// priority (IEEE 802.1Q, clause 9.6).
func sameVLANs(tags []uint16, hop *nexthop.Hop) bool {
	const vid = 0xfff
	n := uint8(0)
	for _, tci := range tags {
		switch {
		case tci&vid == 0:
			continue
		case n == hop.VLANs || tci&vid != hop.VLAN[n].TCI&vid:
			return false
		}
		n++
	}
	return n == hop.VLANs
}
