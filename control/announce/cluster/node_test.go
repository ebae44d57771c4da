package cluster

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A Node's address is its first internal one of IPv4.
func TestNodeAddress(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.2"},
	}}}
	if got := nodeOf(n).Address; got != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("%v", got)
	}
}

// A Node's network is unavailable by its condition of that name alone, and only while that is true.
func TestNetworkUnavailable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		want   string
	}{
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "node n has the condition NetworkUnavailable: no route"},
		{corev1.NodeNetworkUnavailable, corev1.ConditionFalse, ""},
		{corev1.NodeNetworkUnavailable, corev1.ConditionUnknown, ""},
		{corev1.NodeDiskPressure, corev1.ConditionTrue, ""},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: c.kind, Status: c.status,
			Reason: "NoRouteCreated", Message: "no route"}}}}
		n.Name = "n"
		if got := nodeOf(n).NetworkUnavailable; got != c.want {
			t.Errorf("%s %s: %q, want %q", c.kind, c.status, got, c.want)
		}
	}
}
