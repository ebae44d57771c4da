package status

import "sluice.dev/sluice/fastpath/services"

// eligible has the backends that get new flows: from all clients, or only from pods.
type eligible struct{ outside, pods map[services.BackendRef]bool }

func eligibleOf(s *services.Snapshot) eligible {
	e := eligible{map[services.BackendRef]bool{}, map[services.BackendRef]bool{}}
	seen := map[*services.EndpointSet]bool{nil: true}
	note := func(set *services.EndpointSet, into map[services.BackendRef]bool) {
		if seen[set] {
			return
		}
		seen[set] = true
		for _, r := range set.Backends {
			into[r] = true
		}
	}
	s.Frontends(func(f *services.Frontend) bool { note(f.Outside.Set, e.outside); return true })
	s.Frontends(func(f *services.Frontend) bool { note(f.Pod.Set, e.pods); return true })
	return e
}

// of reports whether a backend gets new flows, and why not; see BackendView.
func (e *eligible) of(p *services.Service, b *services.Backend) (newFlows, podsOnly bool, why string) {
	switch {
	case e.outside[b.Ref], e.pods[b.Ref]:
		if b.Flags&services.BackendReady == 0 {
			why = "terminating, but no endpoint is ready"
		}
		if b.Flags&services.BackendDown != 0 {
			why = "down, but fewer than half would be left"
		}
		return true, !e.outside[b.Ref], why
	case p == nil:
		why = "its service port is gone"
	default:
		if why = Excluded(p, b, !p.Direct && (p.LocalExternal || p.LocalInternal)); why == "" {
			why = "no frontend uses these endpoints"
		}
	}
	return false, false, why
}

// Excluded returns why an endpoint is not in a set of its service with policy Local (local) or
// Cluster; "" if it is not excluded.
func Excluded(p *services.Service, b *services.Backend, local bool) string {
	const terminatingServing = services.BackendServing | services.BackendTerminating
	switch {
	case b.Flags&services.BackendDrained != 0:
		return "drained"
	case p.Direct && b.Flags == 0:
		return "a node without endpoints; it keeps its flows"
	case b.Weight == 0:
		return "weight 0"
	case b.Flags&services.BackendReady == 0 && b.Flags&terminatingServing != terminatingServing:
		return "not ready"
	case local && b.Flags&services.BackendLocal == 0:
		return "policy Local, and it is not on this node"
	case b.Flags&services.BackendReady == 0:
		return "terminating, and others are ready"
	}
	if why := unhinted(p.Topology[family(b)], b.Flags); !local && why != "" || b.Flags&services.BackendDown == 0 {
		return why
	}
	return "down by this gateway's check"
}

// unhinted returns why topology hints exclude a ready backend; "" if they do not.
func unhinted(t services.Topology, f services.BackendFlags) string {
	switch {
	case t == services.TopologyNode && f&services.BackendHintNode == 0:
		return "its hints are for other nodes"
	case t == services.TopologyZone && f&services.BackendHintZone == 0:
		return "its hints are for other zones"
	}
	return ""
}

func family(b *services.Backend) int {
	if b.Addr.Is4() {
		return 0
	}
	return 1
}

func hints(f services.BackendFlags) (names []string) {
	if f&services.BackendHintNode != 0 {
		names = append(names, "node")
	}
	if f&services.BackendHintZone != 0 {
		names = append(names, "zone")
	}
	return names
}

func ruleView(r services.Rule) (v RuleView) {
	v.KeepClient = r.KeepClient
	if r.Set == nil {
		return v
	}
	v.Usable, v.Slots = len(r.Set.Backends), len(r.Set.Table)
	if v.Usable == 0 {
		v.Empty = "reject"
		if r.Set.Empty == services.EmptyDrop {
			v.Empty = "drop"
		}
	}
	return v
}

// policyName returns the name of a traffic policy in Kubernetes.
func policyName(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func topologyName(t services.Topology) string {
	return [...]string{services.TopologyNone: "", services.TopologyZone: "zone", services.TopologyNode: "node"}[t]
}
