package control

import "sluice.dev/sluice/fastpath/services"

// choose says who takes new flows: all ready endpoints; if there is none, all
// that terminate but still serve (KEP-1669). Under policy Local both rules look
// at this node's endpoints alone. A drained endpoint counts as if it were not
// there. If nobody is left, clients hear so, unless endpoints elsewhere could
// have taken the flow: then silence, so that a retry may reach another gateway.
func choose(members []member, local bool, into []services.BackendRef) (chosen []services.BackendRef, empty services.Empty) {
	chosen = pick(members, local, ready, into)
	if len(chosen) == 0 {
		chosen = pick(members, local, leaving, into)
	}
	if len(chosen) > 0 {
		return chosen, services.EmptyReject
	}
	for _, m := range members {
		if ready(m.flags) || leaving(m.flags) {
			return chosen, services.EmptyDrop
		}
	}
	return chosen, services.EmptyReject
}

func pick(members []member, local bool, usable func(services.BackendFlags) bool, into []services.BackendRef) []services.BackendRef {
	for _, m := range members {
		if usable(m.flags) && (!local || m.flags&services.BackendLocal != 0) {
			into = append(into, m.ref)
		}
	}
	return into
}

func ready(f services.BackendFlags) bool {
	return f&(services.BackendReady|services.BackendDrained) == services.BackendReady
}

func leaving(f services.BackendFlags) bool {
	const want = services.BackendServing | services.BackendTerminating
	return f&(want|services.BackendDrained) == want
}
