package fastpath

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// offPath reports whether a reply did not come from where its flow's packets to the backend go: the
// interface and VLAN of the next hop, or the kernel (RFC 3704 section 2.2, strict reverse path
// forwarding). A next hop that is not known says nothing about a flow that stands; but what no
// packet can have reached has not answered.
func (w *Worker) offPath(p *header.Packet, ref flowtable.Ref) bool {
	w.planner.Bind(ref)
	var toBackend header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	id := w.nextHop(w.flows.Flow(ref), flowtable.ClientSide, &toBackend.Dst)
	hop := w.c.Hops.Hop(id)
	switch {
	case id == 0 || hop == nil:
		return !w.flows.Flow(ref).State().Stands()
	}
	return !w.cameFrom(hop, p.VLAN[:p.VLANs])
}

// onPath returns up to which packet finishPlain may forward those of a group from first on: the
// first that is offPath, or that has not matched a flow yet. It returns first only for one that
// is offPath. It is no part of finishPlain's loop, which it would make slower by half a percent
// where the reverse path is not strict.
func (w *Worker) onPath(first, end int) int {
	var flows [groupSize]*flowtable.Flow
	group := w.match(first, end, &flows)
	for i := range group {
		if group[i].Side() != flowtable.ReplySide {
			continue
		}
		_, id := flows[i].BoundTo(flowtable.ClientSide)
		hop := w.c.Hops.Hop(nexthop.ID(id))
		if hop == nil || !w.cameFrom(hop, nil) { // plain packets have no tags
			return first + i
		}
	}
	return first + max(1, len(group))
}

// cameFrom reports whether a packet with these VLAN tags came from where those to a hop go.
func (w *Worker) cameFrom(hop *nexthop.Hop, tags []uint16) bool {
	if hop.Kind == nexthop.OnLink {
		return !w.b.kernel && w.c.Interfaces[w.b.link] == int(hop.Link) && sameVLANs(tags, hop)
	}
	return hop.Kind == nexthop.Kernel && w.b.kernel
}

// sameVLANs reports whether tags are those that packets to a hop get. A tag of VLAN 0 has a
// priority alone (IEEE 802.1Q, clause 9.6).
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
