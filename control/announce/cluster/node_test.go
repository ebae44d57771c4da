package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
