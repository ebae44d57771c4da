package allocate

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/allocate/pools"
)

// TestAddressesOfNodes: no Service gets the address of a Node, even if it asks for it, as long as
// the Node has it. A Service that had it before the Node keeps it, with a note.
func TestAddressesOfNodes(t *testing.T) {
	t.Parallel()
	had := balancer("had", nil)
	had.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}}
	b := newBench(t, balancer("a", nil), balancer("asks", map[string]string{"metallb.io/loadBalancerIPs": "192.0.2.1"}),
		had, balancer("waits", nil))
	b.nodesChanged = func() { b.queue.Add("pools") }
	b.keepNode("n1", []netip.Addr{netip.MustParseAddr("192.0.2.0")})
	b.keepNode("n2", []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")})
	b.pools(pools.Spec{Addresses: []string{"192.0.2.0/30"}})
	b.must("a", "asks", "had", "waits")
	b.has("a", "192.0.2.3")
	b.has("asks", "")
	if c := b.condition("asks"); !strings.Contains(c.Message, "Node n2 has it") {
		t.Errorf("asks: %+v", c)
	}
	b.has("had", "192.0.2.2")
	b.has("waits", "")
	b.queued("")

	text := b.nodesIn(b.alloc.Pools()[0])
	want := "192.0.2.0 is an address of Node n1, and 1 more of the pool are addresses of Nodes"
	if !strings.HasPrefix(text, want) {
		t.Errorf("the pool says %q, want %q", text, want)
	}

	b.keepNode("n3", []netip.Addr{netip.MustParseAddr("192.0.2.2")})
	if !b.queued("default/had") {
		t.Error("the Service that has the new Node's address is not looked at")
	}
	b.must("had")
	b.has("had", "192.0.2.2")
	if c := b.condition("had"); !strings.Contains(c.Message, "192.0.2.2 is also an address of Node n3") {
		t.Errorf("had: %+v", c)
	}

	b.keepNode("n1", nil)
	if !b.queued("default/waits") {
		t.Error("nobody is looked at after the Node has gone")
	}
	b.must("waits")
	b.has("waits", "192.0.2.0")
}
