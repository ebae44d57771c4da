package compiler

import (
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// A service port has up to two endpoint sets in each family. These are their indexes.
const (
	clusterSet = iota // of policy Cluster
	localSet          // of policy Local
	numSets
)

// keepMode selects the members whose replies carry the client's address, not one of this gateway.
type keepMode uint8

const (
	keepNone  keepMode = iota
	keepLocal          // members on this node
	keepAll
)

func (k keepMode) keeps(m member) bool {
	return k == keepAll || k == keepLocal && m.flags&services.BackendLocal != 0
}

// policy is a Rule before its set is known.
type policy struct {
	set  int
	keep bool
}

// policies returns the policies of a kind of frontend for outside clients and for pods (KEP-2086;
// k8s.io/kubernetes pkg/proxy/nftables/proxier.go):
//
//	                    outside                      pod
//	ClusterIP           translated                   kept, unless MasqueradeAll
//	others, Cluster     translated                   translated
//	others, Local       this node's, kept            everywhere, kept
//	others, direct      all nodes of endpoints, which get the packet as it is
//	ClusterIP, routed   kept                         kept, unless MasqueradeAll
//	others, routed      kept                         kept
//
// Without ClusterCIDRs of the family both are the same.
func (c *settings) policies(s *objects.Service, kind services.FrontendKind, f int) (outside, pod policy) {
	switch {
	case c.direct(s):
	case kind == services.ClusterIP:
		pod.keep = !c.MasqueradeAll
		if s.LocalInternal {
			outside.set, pod.set = localSet, localSet
		}
	case s.LocalExternal:
		outside, pod = policy{localSet, true}, policy{clusterSet, true}
	}
	if s.Routed {
		outside.keep = true
		pod.keep = pod.keep || kind != services.ClusterIP
	}
	if !c.pods[f] {
		pod = outside
	}
	return outside, pod
}

// needs are the sets and the keepMode that the frontends of a service port require in one family.
type needs struct {
	sets [numSets]bool
	keep keepMode
}

func (c *settings) needs(s *objects.Service, p objects.ServicePort, f int) (n needs) {
	add := func(kind services.FrontendKind) {
		outside, pod := c.policies(s, kind, f)
		for _, p := range [...]policy{outside, pod} {
			n.sets[p.set] = true
			switch {
			case p.keep && p.set == localSet:
				n.keep = max(n.keep, keepLocal)
			case p.keep:
				n.keep = keepAll
			}
		}
	}
	if c.nodePorts(s, &p) {
		add(services.NodePort)
	}
	for _, v := range s.VIPs {
		if f == objects.Family(!v.Addr.Is4()) && c.serves(s, v) {
			add(v.Kind)
		}
	}
	return n
}
