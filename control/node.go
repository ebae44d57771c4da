package control

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// taintAutoscaler is what the cluster autoscaler puts on a node that it will delete
// (KEP-3836).
const taintAutoscaler = "ToBeDeletedByClusterAutoscaler"

// node is what is kept of a v1 Node. It is immutable. Forwarding follows its zone
// alone; which endpoints are local follows from endpoints' node names.
type node struct {
	id        ObjectID
	zone      string
	addresses []netip.Addr
	leaving   string
}

func (n *node) equal(o *node) bool {
	return n.id == o.id && n.zone == o.zone && n.leaving == o.leaving && slices.Equal(n.addresses, o.addresses)
}

// trimNode keeps what is needed of a Node. Host names and addresses that are none
// are left out, as the Node of a cloud has both.
func trimNode(in *corev1.Node) (n *node, malformed []fault) {
	n = &node{id: idOf(KindNode, "", in.Name), zone: in.Labels[corev1.LabelTopologyZone]}
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
		n.leaving = fmt.Sprintf("Node %s is being deleted", in.Name)
	case slices.ContainsFunc(in.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintAutoscaler }):
		n.leaving = fmt.Sprintf("Node %s has the taint %s", in.Name, taintAutoscaler)
	}
	return n, checkName(n.id)
}

func (n *node) info() NodeInfo {
	if n == nil {
		return NodeInfo{}
	}
	return NodeInfo{Known: true, Zone: n.zone, Addresses: slices.Clone(n.addresses), Leaving: n.leaving}
}

// Node returns what is known of a Node. It may be called from any goroutine; what
// it returns may be ahead of what is compiled.
func (t *Tracker) Node(name string) NodeInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.objects[idOf(KindNode, "", name)]; o != nil {
		if w := o.winner(); w != nil {
			return w.good.(*node).info()
		}
	}
	return NodeInfo{}
}

// setNode notes a Node's new version, or nil. Only the zone of this node's own one
// decides anything.
func (r *run) setNode(id ObjectID, now *node) {
	if now == nil || now.zone == "" {
		delete(r.zones, id.Name)
	} else {
		r.zones[id.Name] = now.zone
	}
	r.settleZone()
}

// settleZone takes over the zone of the node that the configuration names. Units
// whose endpoints have hints choose anew by it.
func (r *run) settleZone() {
	zone := r.zones[r.cfg.NodeName]
	if zone == r.zone {
		return
	}
	r.zone = zone
	for _, u := range r.units {
		if slices.ContainsFunc(u.slices, func(s *slice) bool { return s.hints }) {
			r.dirty[u] = true
		}
	}
}
