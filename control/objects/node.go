package objects

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// taintAutoscaler is the taint that the cluster autoscaler adds to a node before it deletes the
// node (KEP-3836).
const taintAutoscaler = "ToBeDeletedByClusterAutoscaler"

// Node has the fields of a v1 Node that are used. It is immutable. Forwarding depends on its zone
// only; endpoints are local by their own node names.
type Node struct {
	ID          ObjectID
	Zone        string
	addresses   []netip.Addr
	drainReason string
}

// NodeInfo is a copy of a Node for other packages than the compiler. The zero value stands for a
// Node that is not known.
type NodeInfo struct {
	Known bool
	// Zone is the label topology.kubernetes.io/zone; empty if there is none.
	Zone string
	// Addresses are status.addresses of type InternalIP, then ExternalIP, in their order.
	Addresses []netip.Addr
	// DrainReason is why load balancers should send the node no new traffic: it has a
	// deletionTimestamp, or the taint ToBeDeletedByClusterAutoscaler (KEP-3836). Empty if they may.
	DrainReason string
}

func (n *Node) equal(o *Node) bool {
	return n.ID == o.ID && n.Zone == o.Zone && n.drainReason == o.drainReason && slices.Equal(n.addresses, o.addresses)
}

// TrimNode copies the fields that are used. It leaves out host names and invalid addresses, because
// Nodes of cloud providers have both.
func TrimNode(in *corev1.Node) (n *Node, malformed []FieldProblem) {
	n = &Node{ID: MakeObjectID(KindNode, "", in.Name), Zone: in.Labels[corev1.LabelTopologyZone]}
	for _, kind := range [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range in.Status.Addresses {
			if a.Type != kind {
				continue
			}
			if ip, err := parseAddr(a.Address); err == nil && !slices.Contains(n.addresses, ip) {
				n.addresses = append(n.addresses, ip)
			}
		}
	}
	switch {
	case !in.DeletionTimestamp.IsZero():
		n.drainReason = fmt.Sprintf("Node %s is being deleted", in.Name)
	case slices.ContainsFunc(in.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintAutoscaler }):
		n.drainReason = fmt.Sprintf("Node %s has the taint %s", in.Name, taintAutoscaler)
	}
	return n, checkName(n.ID)
}

// Address returns the address at which a tunnel to the node ends: its first InternalIP or, without
// one, its first ExternalIP. ok is false if it has neither, or if n is nil.
func (n *Node) Address() (a netip.Addr, ok bool) {
	if n == nil || len(n.addresses) == 0 {
		return a, false
	}
	return n.addresses[0], true
}

// Info returns the NodeInfo of n, which may be nil.
func (n *Node) Info() NodeInfo {
	if n == nil {
		return NodeInfo{}
	}
	return NodeInfo{Known: true, Zone: n.Zone, Addresses: slices.Clone(n.addresses), DrainReason: n.drainReason}
}
