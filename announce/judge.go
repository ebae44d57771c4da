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

// ExcludeLabel on a node keeps load balancers' traffic away from it, with any value
// (k8s.io/api/core/v1, LabelNodeExcludeBalancers).
const ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// Node is this node.
type Node struct {
	Name   string
	Labels labels.Set
	// Address is its internal IPv4 address; not valid: it is not known.
	Address netip.Addr
	// Cordoned: spec.unschedulable. Deleted: it is about to be deleted.
	Cordoned, Deleted bool
	// NetworkUnavailable is why the Node has the condition of that name; empty: it has not, or it
	// is not true.
	NetworkUnavailable string
}

// grade says how far the node announces at all.
func (n *Node) grade() (Grade, string) {
	_, excluded := n.Labels[ExcludeLabel]
	switch {
	case excluded:
		return No, "node " + n.Name + " has the label " + ExcludeLabel
	case n.Deleted:
		return No, "node " + n.Name + " is about to be deleted"
	case n.Cordoned:
		return Leaving, "node " + n.Name + " is cordoned: routers prefer others"
	}
	return Yes, ""
}

// Input is what Judge decides by.
type Input struct {
	Node    Node
	Verdict Verdict
	// Leaves: the node has not announced as Leaving for long enough to stop.
	Leaves bool
	Set    *kinds.Set
	// Services has the labels of Services by namespace/name; nil where there are none to read.
	Services map[string]labels.Set
	// Impaired are the VIPs that another gateway is to be preferred for, and why (Impairments).
	Impaired map[netip.Addr]string
}

// alike reports whether two Inputs differ in VIPs, Services and Impaired alone.
func (in *Input) alike(o *Input) bool {
	return in.Node.equal(&o.Node) && in.Verdict.Grade == o.Verdict.Grade && in.Verdict.Why == o.Verdict.Why &&
		in.Leaves == o.Leaves && in.Set == o.Set
}

// relabelled returns the addresses of the VIPs of Services whose labels differ from before.
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

// Standing is a VIP and how far it is to be announced.
type Standing struct {
	VIP      netip.Addr
	Services []string // namespace/name
	Labels   []labels.Set
	Pool     *kinds.Pool
	Grade    Grade
	Why      string
}

// Judge returns the standing of each VIP that the gateway serves, or served last, in order.
func Judge(in *Input) []*Standing {
	list := make([]*Standing, 0, len(in.Verdict.VIPs))
	for i := range in.Verdict.VIPs {
		list = append(list, in.judge(&in.Verdict.VIPs[i]))
	}
	return list
}

// JudgeSome is Judge where before is the result for an Input that differs in the VIPs with some
// addresses alone: no other is looked at. It leaves before as it is.
func JudgeSome(in *Input, before []*Standing, some []netip.Addr) []*Standing {
	list := slices.Clone(before)
	for _, a := range some {
		i, there := slices.BinarySearchFunc(list, a, compareStanding)
		v := pulse.Find(in.Verdict.VIPs, a)
		switch {
		case v != nil && there:
			list[i] = in.judge(v)
		case v != nil:
			list = slices.Insert(list, i, in.judge(v))
		case there:
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

func compareStanding(s *Standing, a netip.Addr) int { return s.VIP.Compare(a) }

// judge returns the standing of one VIP.
func (in *Input) judge(v *pulse.VIP) *Standing {
	node, why := in.Node.grade()
	if node == No && in.Leaves {
		node = Leaving
	}
	s := &Standing{VIP: v.Address, Pool: in.Set.PoolOf(v.Address), Grade: min(node, in.Verdict.Grade)}
	switch {
	case node < in.Verdict.Grade:
		s.Why = why
	default:
		s.Why = in.Verdict.Why
	}
	if why, impaired := in.Impaired[v.Address]; impaired && s.Grade > LastResort {
		s.Grade, s.Why = LastResort, why
	}
	for _, service := range v.Services {
		key := service.Namespace + "/" + service.Name
		s.Services = append(s.Services, key)
		s.Labels = append(s.Labels, in.Services[key])
	}
	if s.Pool == nil {
		s.Grade, s.Why = No, "no pool has the address: only addresses of AddressPools are announced"
	} else if local := withoutEndpoint(v); local != "" {
		s.Grade, s.Why = No, local
	}
	return s
}

// withoutEndpoint returns why no Service of a VIP can use what is sent here; "" if one can. A
// Service of policy Cluster without endpoints refuses connections, which tells clients more than
// silence.
func withoutEndpoint(v *pulse.VIP) string {
	var names []string
	for _, s := range v.Services {
		if !s.Local || s.Usable {
			return ""
		}
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return fmt.Sprintf("externalTrafficPolicy of %s is Local, and no endpoint on this node is ready",
		strings.Join(names, ", "))
}
