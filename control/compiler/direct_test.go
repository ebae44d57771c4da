package compiler_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// directTo compiles a direct Service with a number of ready endpoints on each node.
func directTo(endpoints []int) *services.Snapshot {
	s, e := web(), slice()
	s.Annotations = map[string]string{"sluice.dev/forwarding": "direct"}
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	var nodes []*corev1.Node
	for i, n := range endpoints {
		name := fmt.Sprint("node-", i)
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}}}})
		for at := range n {
			e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{NodeName: &name,
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 1+i, at/250, 1+at%250)}})
		}
	}
	c := changed(s, e)
	for _, n := range nodes {
		node, _ := objects.TrimNode(n)
		c.Add(node.ID, node)
	}
	snap, _, _ := compiler.New(compiler.Config{TunnelPort: 4789}).Compile(c)
	return snap
}

// TestForwardingRenumbers: a node and an endpoint share no number, even if they have the same
// address and port, so that flows learn that their Service is direct, or no longer.
func TestForwardingRenumbers(t *testing.T) {
	const at = 80
	s, e := web(), slice("192.0.2.1", "192.0.2.2")
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	*e.Ports[0].Port = at
	name := "node-0"
	e.Endpoints[0].NodeName = &name
	c := changed(s, e)
	node, _ := objects.TrimNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}})
	c.Add(node.ID, node)
	compile := compiler.New(compiler.Config{TunnelPort: 4789})
	snap, _, _ := compile.Compile(c)
	for _, forwarding := range []string{"direct", "nat", "direct"} {
		before := map[services.BackendRef]bool{}
		snap.Backends(func(b *services.Backend) bool {
			before[b.Ref] = true
			return true
		})
		s.Annotations = map[string]string{"sluice.dev/forwarding": forwarding}
		snap, _, _ = compile.Compile(changed(s, nil))
		found := 0
		snap.Backends(func(b *services.Backend) bool {
			if before[b.Ref] {
				t.Errorf("%s: the number %#x stays, of %v:%d", forwarding, b.Ref, b.Addr, b.Port)
			}
			if b.Addr == of("192.0.2.1") && b.Port == at {
				found++
			}
			return true
		})
		if found != 1 {
			t.Errorf("%s: %d backends at the node's address and port", forwarding, found)
		}
	}
}

func nodeAddress(i int) string { return fmt.Sprintf("192.0.2.%d", 1+i) }

// TestDirectShares: nodes with at least a tenth of the average number of endpoints get their share
// of flows within 5 %, and nodes without endpoints get none. One more endpoint moves at most twice
// its share, and 2 % of the slots.
func TestDirectShares(t *testing.T) {
	for _, endpoints := range [][]int{{1, 1, 1}, {1, 2, 3}, {5, 0, 1}, {10, 1, 1, 10, 0},
		{50, 3, 20, 40, 7, 30, 1, 100}, {200, 200, 200, 20}} {
		total := 0
		for _, n := range endpoints {
			total += n
		}
		nodes := nodesOfSlots(directTo(endpoints))
		got := map[header.Addr]int{}
		for _, n := range nodes {
			got[n]++
		}
		for i, n := range endpoints {
			want, slots := float64(len(nodes)*n)/float64(total), float64(got[of(nodeAddress(i))])
			if n*len(endpoints)*10 >= total && math.Abs(slots-want) > want/20 || n == 0 && slots > 0 {
				t.Errorf("%d: node %d has %.0f of %d slots, want %.1f", endpoints, i, slots, len(nodes), want)
			}
		}
		more := slices.Clone(endpoints)
		more[0]++
		moved, after := 0, nodesOfSlots(directTo(more))
		for i := range nodes {
			if nodes[i] != after[i] {
				moved++
			}
		}
		if most := 2*len(nodes)/(total+1) + len(nodes)/50; moved > most {
			t.Errorf("%d: %d of %d slots move for one more endpoint", endpoints, moved, len(nodes))
		}
		t.Logf("%d: %d of %d slots move for one more endpoint", endpoints, moved, len(nodes))
	}
}

// nodesOfSlots returns the node of each slot of the Service's table.
func nodesOfSlots(s *services.Snapshot) (nodes []header.Addr) {
	f, _ := s.FrontendByKey(services.FrontendKey{Addr: of("203.0.113.10"), Port: 80, Proto: header.ProtoTCP})
	set := f.Outside.Set
	for _, position := range set.Table {
		nodes = append(nodes, s.Backend(set.Backends[position]).Addr)
	}
	return nodes
}
