package compiler

import "sluice.dev/sluice/fastpath/services"

// hintBits are what an endpoint's topology hints say here.
type hintBits uint8

const (
	hintedNode hintBits = 1 << iota // it has hints for nodes
	hintedZone                      // it has hints for zones
	hintsNode                       // they name this node
	hintsZone                       // they name this node's zone
)

// choose says who takes new flows: all ready endpoints; if there is none, all
// that terminate but still serve (KEP-1669). Under policy Local both rules look
// at this node's endpoints alone; otherwise the first follows topology hints. A
// drained endpoint and one of weight 0 count as if they were not there. If nobody
// is left, clients hear so, unless endpoints elsewhere could have taken the flow:
// then silence, so that a retry may reach another gateway.
func choose(members []member, local bool, into []services.BackendRef) (chosen []services.BackendRef, empty services.Empty, topology services.Topology) {
	var need hintBits
	if !local {
		topology, need = topologyOf(members)
	}
	for i := range members {
		m := &members[i]
		if m.ready() && m.hints&need == need && (!local || m.flags&services.BackendLocal != 0) {
			into = append(into, m.ref)
		}
	}
	if len(into) > 0 {
		return into, services.EmptyReject, topology
	}
	for i := range members {
		m := &members[i]
		if m.terminatingServing() && (!local || m.flags&services.BackendLocal != 0) {
			into = append(into, m.ref)
		}
	}
	if len(into) > 0 {
		return into, services.EmptyReject, topology
	}
	for i := range members {
		if members[i].ready() || members[i].terminatingServing() {
			return into, services.EmptyDrop, topology
		}
	}
	return into, services.EmptyReject, topology
}

// topologyOf says which hints decide (k8s.io/kubernetes pkg/proxy/topology.go):
// those for nodes if every ready endpoint has some and one names this node, else
// those for zones likewise, else none. What a member must have in its hints comes
// with it.
func topologyOf(members []member) (services.Topology, hintBits) {
	all, any := hintedNode|hintedZone, hintBits(0)
	for i := range members {
		if members[i].ready() {
			all &= members[i].hints
			any |= members[i].hints
		}
	}
	switch {
	case all&hintedNode != 0 && any&hintsNode != 0:
		return services.TopologyNode, hintsNode
	case all&hintedZone != 0 && any&hintsZone != 0:
		return services.TopologyZone, hintsZone
	}
	return services.TopologyNone, 0
}

func (m *member) ready() bool {
	return m.weight != 0 && m.flags&(services.BackendReady|services.BackendDrained) == services.BackendReady
}

func (m *member) terminatingServing() bool {
	const want = services.BackendServing | services.BackendTerminating
	return m.weight != 0 && m.flags&(want|services.BackendDrained) == want
}
