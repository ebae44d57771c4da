package compiler

import "sluice.dev/sluice/fastpath/services"

// Problems of a Service whose endpoints fail checks. The texts have no numbers and no names of
// endpoints: these change all the time, and each change would be an Event.
const someDown = "some endpoints fail this gateway's checks and get no new flows; `sluice backends` says which"

const failOpen = "fewer than half of the endpoints are healthy by this gateway's checks, so all get new flows " +
	"(fail open); `sluice backends` says what fails"

// choose returns the backends that take new flows: all ready endpoints or, if none is ready, all
// endpoints that terminate but still serve (KEP-1669). Under policy Local both rules consider this
// node's endpoints only; otherwise the first rule follows topology hints. Drained endpoints and
// endpoints of weight 0 are ignored. If no endpoint is left, new flows are rejected; but they are
// dropped if endpoints on other nodes could take them, so that a retry may reach another gateway.
func choose(
	members []member, local bool, into []services.BackendRef,
) (chosen []services.BackendRef, empty services.Empty, topology services.Topology) {
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

// healthy removes the backends that are down from chosen, in place. If fewer than half would be
// left, it leaves all: the gateway's own network may have failed rather than most endpoints, and
// the few endpoints left would get all flows. why is the Service's problem, or "".
func healthy(
	members []member, chosen []services.BackendRef, down int,
) (left []services.BackendRef, why string) {
	if down == 0 {
		return chosen, ""
	}
	up := 0
	rest := cursor(members)
	for _, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		if m.flags&services.BackendDown == 0 {
			up++
		}
	}
	switch {
	case up == len(chosen):
		return chosen, ""
	case 2*up < len(chosen):
		return chosen, failOpen
	}
	left = make([]services.BackendRef, 0, up)
	rest = cursor(members)
	for _, ref := range chosen {
		m := rest.seek(ref)
		if m == nil {
			break
		}
		if m.flags&services.BackendDown == 0 {
			left = append(left, m.ref)
		}
	}
	return left, someDown
}

// topologyOf returns the hints that apply (k8s.io/kubernetes pkg/proxy/topology.go), and the bits
// that a member's hints must have. Hints for nodes apply if every ready endpoint has some and at
// least one names this node; else hints for zones by the same rule; else none.
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
