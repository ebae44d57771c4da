package control_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control"
)

func testNode(name, zone string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: zone}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.7"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::10"},
		{Type: corev1.NodeInternalIP, Address: "not an address"},
	}
	return n
}

func TestNodeObject(t *testing.T) {
	from := control.Source{Kind: "test"}
	tracker := control.NewTracker()
	if tracker.Node("gw-1").Known {
		t.Error("a Node that nobody told of is known")
	}
	n := testNode("gw-1", "z1")
	tracker.Upsert(from, n)
	n.Status.Addresses[1].Address = "203.0.113.99" // the caller's, not ours
	got := tracker.Node("gw-1")
	var addrs []string
	for _, a := range got.Addresses {
		addrs = append(addrs, a.String())
	}
	if !got.Known || got.Zone != "z1" || got.Leaving != "" || !slices.Equal(addrs, []string{"192.0.2.10", "2001:db8::10", "198.51.100.7"}) {
		t.Errorf("%+v", got)
	}
	if n := tracker.Changes().Len(); n != 1 {
		t.Errorf("%d changes for a new Node", n)
	}
	same := testNode("gw-1", "z1")
	same.Annotations, same.Status.NodeInfo.KernelVersion = map[string]string{"x": "y"}, "6.12"
	tracker.Upsert(from, same)
	if n := tracker.Changes().Len(); n != 0 {
		t.Errorf("%d changes where nobody looks", n)
	}
	tracker.Upsert(from, testNode("gw-1", "z2"))
	if n := tracker.Changes().Len(); n != 1 || tracker.Node("gw-1").Zone != "z2" {
		t.Errorf("%d changes for a new zone", n)
	}
	for _, c := range []struct {
		name    string
		change  func(*corev1.Node)
		leaving bool
	}{
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		{"another taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady}} }, false},
		{"the autoscaler's taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }, true},
		{"being deleted", func(n *corev1.Node) { now := metav1.Now(); n.DeletionTimestamp = &now }, true},
	} {
		n := testNode("gw-1", "z1")
		c.change(n)
		tracker.Upsert(from, n)
		if got := tracker.Node("gw-1"); (got.Leaving != "") != c.leaving {
			t.Errorf("%s: leaving %q", c.name, got.Leaving)
		}
	}
	tracker.Delete(from, control.ObjectID{Kind: control.KindNode, Name: "gw-1"})
	if tracker.Node("gw-1").Known {
		t.Error("a Node that went is known")
	}
}

// TestWaiting: what was read and not asked for is counted once per object, and its
// age is that of the first of it.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := control.Source{Kind: "test"}
		tracker := control.NewTracker()
		first := time.Now()
		tracker.Upsert(from, benchService(1))
		time.Sleep(time.Second)
		tracker.Upsert(from, benchService(1))
		tracker.Upsert(from, benchSlice(1, 0))
		tracker.Upsert(from, testNode("gw-1", "z1"))
		if w := tracker.Waiting(); w != (control.Waiting{Services: 1, EndpointSlices: 1}) || !tracker.Queued().Equal(first) {
			t.Errorf("%+v since %v, want one of each since %v", w, tracker.Queued(), first)
		}
		tracker.Changes()
		if w := tracker.Waiting(); w != (control.Waiting{}) || !tracker.Queued().IsZero() {
			t.Errorf("%+v since %v, all was asked for", w, tracker.Queued())
		}
	})
}
