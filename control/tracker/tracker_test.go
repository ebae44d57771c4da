package tracker_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

func TestChangesThatCancelAreDropped(t *testing.T) {
	tracker := tracker.New()
	from := objects.Source{Kind: "test"}
	id := objects.ObjectID{Kind: objects.KindService, Namespace: "bench", Name: "service-1"}
	changes := func(want int, what string) {
		t.Helper()
		if got := tracker.Changes().Len(); got != want {
			t.Errorf("%s: %d changes, want %d", what, got, want)
		}
	}
	tracker.Upsert(from, controltest.Service(1))
	tracker.Delete(from, id)
	changes(0, "added and deleted")
	tracker.Upsert(from, controltest.Service(1))
	tracker.Upsert(from, controltest.Service(1))
	changes(1, "added twice")
	changes(0, "asked again")

	other := controltest.Service(1)
	other.ResourceVersion, other.Spec.Selector = "77", map[string]string{"app": "x"}
	tracker.Upsert(from, other)
	changes(0, "changed where nobody looks")
	other.Spec.Ports[0].Port = 81
	tracker.Upsert(from, other)
	tracker.Upsert(from, controltest.Service(1))
	changes(0, "changed and changed back")
	tracker.Delete(from, id)
	tracker.Upsert(from, controltest.Service(1))
	changes(0, "deleted and added")
	tracker.Delete(from, id)
	changes(1, "deleted")
	tracker.Delete(from, id)
	changes(0, "deleted twice")
	if tracker.Read() != 11 {
		t.Errorf("%d batches read, want 11", tracker.Read())
	}
}

func TestProblemIsOneLine(t *testing.T) {
	tracker := tracker.New()
	s := controltest.Service(1)
	s.Name = "evil\nrefused Service default/innocent: is broken\u2028"
	s.Spec.Type = corev1.ServiceType("\x1b[31m\r\n")
	tracker.Upsert(objects.Source{Kind: "test", Path: "a\nb"}, s)
	for _, p := range tracker.Locate(nil) {
		if strings.ContainsAny(p.String(), "\n\r\x1b\u2028") {
			t.Errorf("%q", p)
		}
	}
}

func TestNodeObject(t *testing.T) {
	from := objects.Source{Kind: "test"}
	tracker := tracker.New()
	if tracker.Node("gw-1").Known {
		t.Error("a Node that nobody told of is known")
	}
	n := controltest.Node("gw-1", "z1")
	tracker.Upsert(from, n)
	n.Status.Addresses[1].Address = "203.0.113.99" // the caller's, not ours
	got := tracker.Node("gw-1")
	var addrs []string
	for _, a := range got.Addresses {
		addrs = append(addrs, a.String())
	}
	if !got.Known || got.Zone != "z1" || got.DrainReason != "" ||
		!slices.Equal(addrs, []string{"192.0.2.10", "2001:db8::10", "198.51.100.7"}) {
		t.Errorf("%+v", got)
	}
	if n := tracker.Changes().Len(); n != 1 {
		t.Errorf("%d changes for a new Node", n)
	}
	same := controltest.Node("gw-1", "z1")
	same.Annotations, same.Status.NodeInfo.KernelVersion = map[string]string{"x": "y"}, "6.12"
	tracker.Upsert(from, same)
	if n := tracker.Changes().Len(); n != 0 {
		t.Errorf("%d changes where nobody looks", n)
	}
	tracker.Upsert(from, controltest.Node("gw-1", "z2"))
	if n := tracker.Changes().Len(); n != 1 || tracker.Node("gw-1").Zone != "z2" {
		t.Errorf("%d changes for a new zone", n)
	}
	for _, c := range []struct {
		name    string
		change  func(*corev1.Node)
		leaving bool
	}{
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		{"another taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady}} },
			false},
		{"the autoscaler's taint",
			func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }, true},
		{"being deleted", func(n *corev1.Node) { now := metav1.Now(); n.DeletionTimestamp = &now }, true},
	} {
		n := controltest.Node("gw-1", "z1")
		c.change(n)
		tracker.Upsert(from, n)
		if got := tracker.Node("gw-1"); (got.DrainReason != "") != c.leaving {
			t.Errorf("%s: leaving %q", c.name, got.DrainReason)
		}
	}
	tracker.Delete(from, objects.ObjectID{Kind: objects.KindNode, Name: "gw-1"})
	if tracker.Node("gw-1").Known {
		t.Error("a Node that went is known")
	}
}

// TestWaiting: changes that were read and not returned by Changes are counted once per object, and
// their age is that of the first one.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := objects.Source{Kind: "test"}
		tr := tracker.New()
		first := time.Now()
		tr.Upsert(from, controltest.Service(1))
		time.Sleep(time.Second)
		tr.Upsert(from, controltest.Service(1))
		tr.Upsert(from, controltest.Slice(1, 0))
		tr.Upsert(from, controltest.Node("gw-1", "z1"))
		if w := tr.Waiting(); w != (tracker.Waiting{Services: 1, EndpointSlices: 1}) || !tr.Queued().Equal(first) {
			t.Errorf("%+v since %v, want one of each since %v", w, tr.Queued(), first)
		}
		tr.Changes()
		if w := tr.Waiting(); w != (tracker.Waiting{}) || !tr.Queued().IsZero() {
			t.Errorf("%+v since %v, all was returned", w, tr.Queued())
		}
	})
}
