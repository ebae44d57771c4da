package announce

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/pulse"
)

// ExcludeLabel, with any value, excludes a node from load balancer traffic
// (k8s.io/api/core/v1, LabelNodeExcludeBalancers).
const ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// Node is this node.
type Node struct {
	Name   string
	Labels labels.Set
	// Address is its internal IPv4 address; not valid: unknown.
	Address netip.Addr
	// Cordoned is spec.unschedulable. Deleted: the Node was seen and is gone, or has a
	// deletionTimestamp or taint.
	Cordoned, Deleted bool
	// NetworkUnavailable is the reason of the Node's condition with that name; empty: the Node
	// lacks the condition, or it is not true.
	NetworkUnavailable string
}

// grade returns how far the node announces at all, and why not more.
func (n *Node) grade() (Grade, string) {
	_, excluded := n.Labels[ExcludeLabel]
	switch {
	case excluded:
		return No, "node " + n.Name + " has the label " + ExcludeLabel
	case n.Deleted:
		return No, "node " + n.Name + " is deleted, or about to be"
	case n.Cordoned:
		return Leaving, "node " + n.Name + " is cordoned: routers prefer others"
	}
	return Yes, ""
}

// Input is the input of Decide.
type Input struct {
	Node    Node
	Verdict Verdict
	// Leaves: the node still announces its routes as leaving, before it withdraws them.
	Leaves bool
	Set    *kinds.Set
	// Services has the labels of Services by namespace/name; nil if there are no Services to read.
	Services map[string]labels.Set
	// Impaired has the VIPs for which other gateways should be preferred, with the reasons.
	Impaired map[netip.Addr]string
}

// sameForAll reports whether two Inputs differ at most in VIPs, Services and Impaired.
func (in *Input) sameForAll(o *Input) bool {
	return in.Node.equal(&o.Node) && in.Verdict.Grade == o.Verdict.Grade && in.Verdict.Why == o.Verdict.Why &&
		in.Leaves == o.Leaves && in.Set == o.Set && slices.Equal(in.Verdict.Sources, o.Verdict.Sources)
}

// relabelled returns the addresses of VIPs with a Service whose labels changed.
func (in *Input) relabelled(before map[string]labels.Set) (list []netip.Addr) {
	differ := map[string]bool{}
	for key, l := range in.Services {
		if was, there := before[key]; !there || !maps.Equal(l, was) {
			differ[key] = true
		}
	}
	for key := range before {
		if _, there := in.Services[key]; !there {
			differ[key] = true
		}
	}
	if len(differ) == 0 {
		return nil
	}
	for i := range in.Verdict.VIPs {
		v := &in.Verdict.VIPs[i]
		if slices.ContainsFunc(v.Services, func(s pulse.Service) bool { return differ[s.Namespace+"/"+s.Name] }) {
			list = append(list, v.Address)
		}
	}
	return list
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && maps.Equal(n.Labels, o.Labels) && n.Cordoned == o.Cordoned && n.Deleted == o.Deleted &&
		n.NetworkUnavailable == o.NetworkUnavailable && n.Address == o.Address
}

// VIPVerdict is a VIP and how far it is announced.
type VIPVerdict struct {
	VIP      netip.Addr
	Services []string // namespace/name
	Labels   []labels.Set
	Pool     *kinds.Pool
	Grade    Grade
	Why      string
	// Source: it is no VIP but a source address of the gateway's group, without Services. Routers
	// prefer gateways with a lower Rank.
	Source bool
	Rank   int
}

// staleRank is added to the rank of a source address at a gateway that is the last resort: it is
// more than the rank of any other gateway.
const staleRank = 8

// DecideSources returns the verdict about each source address of the gateway's group.
func DecideSources(in *Input) (list []*VIPVerdict) {
	for _, a := range in.Verdict.Sources {
		s := &VIPVerdict{VIP: a.Address, Source: true, Rank: a.Rank, Pool: in.Set.PoolOf(a.Address)}
		if s.Grade, s.Why = in.gradeOfNode(); s.Grade == LastResort {
			s.Grade, s.Rank = Leaving, s.Rank+staleRank
		}
		list = append(list, s)
	}
	return list
}

// Decide returns the verdict about each VIP that the gateway serves, or served last, in order.
func Decide(in *Input) []*VIPVerdict {
	list := make([]*VIPVerdict, 0, len(in.Verdict.VIPs))
	for i := range in.Verdict.VIPs {
		list = append(list, in.decide(&in.Verdict.VIPs[i]))
	}
	return list
}

// DecideSome is Decide for an Input that differs from the previous one only in the VIPs with the
// addresses some. It looks at no other VIP, and does not change before.
func DecideSome(in *Input, before []*VIPVerdict, some []netip.Addr) []*VIPVerdict {
	list := slices.Clone(before)
	for _, a := range some {
		i, there := slices.BinarySearchFunc(list, a, compareVIP)
		v := pulse.Find(in.Verdict.VIPs, a)
		switch {
		case v != nil && there:
			list[i] = in.decide(v)
		case v != nil:
			list = slices.Insert(list, i, in.decide(v))
		case there:
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

func compareVIP(s *VIPVerdict, a netip.Addr) int { return s.VIP.Compare(a) }

// gradeOfNode returns how far node and gateway are announced, and why not more.
func (in *Input) gradeOfNode() (Grade, string) {
	node, why := in.Node.grade()
	if node == No && in.Leaves {
		node = Leaving
	}
	if node < in.Verdict.Grade {
		return node, why
	}
	return in.Verdict.Grade, in.Verdict.Why
}

// decide returns the verdict about one VIP.
func (in *Input) decide(v *pulse.VIP) *VIPVerdict {
	s := &VIPVerdict{VIP: v.Address, Pool: in.Set.PoolOf(v.Address)}
	s.Grade, s.Why = in.gradeOfNode()
	if why, impaired := in.Impaired[v.Address]; impaired && s.Grade > LastResort {
		s.Grade, s.Why = LastResort, why
	}
	for _, service := range v.Services {
		key := service.Namespace + "/" + service.Name
		s.Services = append(s.Services, key)
		s.Labels = append(s.Labels, in.Services[key])
	}
	if slices.ContainsFunc(in.Verdict.Sources, func(a pulse.Source) bool { return a.Address == v.Address }) {
		s.Grade, s.Why = No, "it is a source address of the gateway's group"
	} else if s.Pool == nil {
		s.Grade, s.Why = No, "no pool has the address: only addresses of AddressPools are announced"
	} else if local := withoutEndpoint(v); local != "" {
		s.Grade, s.Why = No, local
	}
	return s
}

// withoutEndpoint returns why no Service of a VIP can use packets that arrive here; "" if one can.
// A Service of policy Cluster without endpoints refuses connections, which is a better answer for
// clients than none.
func withoutEndpoint(v *pulse.VIP) string {
	var names []string
	for _, s := range v.Services {
		if !s.Local || s.Usable {
			return ""
		}
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return fmt.Sprintf("externalTrafficPolicy of %s is Local, and no endpoint for this gateway is ready",
		strings.Join(names, ", "))
}
