package k8s

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// newTestStore is a store before a Tracker.
func newTestStore() (*store, *tracker.Tracker) {
	t := tracker.New()
	s := newStore(testSource)
	s.apply, s.changed = newHold(t.Apply, 0).apply, func(int, uint64, bool) {}
	return s, t
}

func versioned(o *discoveryv1.EndpointSlice, version string) *discoveryv1.EndpointSlice {
	o.ResourceVersion = version
	return o
}

func TestStore(t *testing.T) {
	first := func() any { return versioned(testSlice("x", "1"), "10") }
	cases := []struct {
		name string
		do   func(*store) error
		want int
	}{
		{"newer", func(s *store) error { return s.Update(versioned(testSlice("x", "2"), "11")) }, 1},
		{"the same version", func(s *store) error { return s.Update(versioned(testSlice("x", "2"), "10")) }, 0},
		{"older", func(s *store) error { return s.Update(versioned(testSlice("x", "2"), "9")) }, 0},
		{"longer and older as text", func(s *store) error { return s.Update(versioned(testSlice("x", "2"), "100")) },
			1},
		{"a version that is no number", func(s *store) error { return s.Update(versioned(testSlice("x", "2"), "abc")) },
			1},
		{"new, and newer than the list", func(s *store) error { return s.Add(versioned(testSlice("y", "2"), "13")) },
			1},
		{"new, and older than the list", func(s *store) error { return s.Add(versioned(testSlice("y", "2"), "12")) },
			0},
		{"deleted", func(s *store) error { return s.Delete(versioned(testSlice("x"), "13")) }, 1},
		{"deleted by an older event", func(s *store) error { return s.Delete(versioned(testSlice("x"), "9")) }, 0},
		{"deleted, and an older version comes", func(s *store) error {
			_ = s.Delete(versioned(testSlice("x"), "13"))
			return s.Add(versioned(testSlice("x", "1"), "11"))
		}, 1},
		{"deleted and made anew", func(s *store) error {
			_ = s.Delete(versioned(testSlice("x"), "13"))
			return s.Add(versioned(testSlice("x", "2"), "14"))
		}, 1},
		{"a tombstone", func(s *store) error { return s.Delete(cache.DeletedFinalStateUnknown{Key: "shop/x"}) }, 1},
		{"a tombstone of another",
			func(s *store) error { return s.Delete(cache.DeletedFinalStateUnknown{Key: "shop/z"}) }, 0},
		{"an empty list", func(s *store) error { return s.Replace(nil, "14") }, 1},
		{"a list with the same", func(s *store) error { return s.Replace([]any{first()}, "14") }, 0},
		{"a list from a restored server", func(s *store) error {
			return s.Replace([]any{versioned(testSlice("x", "5"), "3")}, "4")
		}, 1},
		{"events after a list from a restored server", func(s *store) error {
			_ = s.Replace([]any{versioned(testSlice("x", "1"), "3")}, "4")
			return s.Update(versioned(testSlice("x", "5"), "5"))
		}, 1},
		{"the same in doubt", func(s *store) error { s.forgetVersions(); return s.Replace([]any{first()}, "14") }, 0},
		{"gone in doubt", func(s *store) error { s.forgetVersions(); return s.Replace(nil, "14") }, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, tracker := newTestStore()
			if err := s.Replace([]any{first()}, "12"); err != nil {
				t.Fatal(err)
			}
			tracker.Changes()
			if err := c.do(s); err != nil {
				t.Fatal(err)
			}
			if got := tracker.Changes().Len(); got != c.want {
				t.Errorf("%d changes, want %d", got, c.want)
			}
		})
	}
}

// A change whose object cannot be read without a panic is that object's problem.
func TestPanicIsAProblemOfTheObject(t *testing.T) {
	tracker := tracker.New()
	h := newHold(tracker.Apply, 0)
	h.apply(testSource, []change{{id: objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "shop", Name: "x"},
		object: testSlice("x", "1")}})
	tracker.Changes()
	h.apply(testSource, []change{
		{id: objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "shop", Name: "x"},
			object: (*discoveryv1.EndpointSlice)(nil)},
		{id: objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: "shop", Name: "y"},
			object: testSlice("y", "2")},
	})
	if got := tracker.Changes().Len(); got != 1 {
		t.Errorf("%d changes, want the one beside the panic", got)
	}
	problems := tracker.Locate(nil)
	if len(problems) != 1 || !problems[0].Serving || !strings.Contains(problems[0].Message, "slice.go:") {
		t.Errorf("problems %v, want one that names the line, and that the last version is served", problems)
	}
}

// trim removes only fields that the Tracker does not read.
func TestTrimKeepsWhatTheTrackerReads(t *testing.T) {
	yes, name, number, proto, text := true, "web", int32(8080), corev1.ProtocolTCP, "x"
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: "shop", Name: name, ResourceVersion: "7", UID: "u",
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)),
			Labels: map[string]string{"app": "x", "kubernetes.io/service-name": "a",
				"topology.kubernetes.io/zone": "z"},
			Annotations: map[string]string{"other": "x", "sluice.dev/scheduler": "rr", "Sluice.dev/weights": "x",
				corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.6Z"},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
			OwnerReferences: []metav1.OwnerReference{{Name: "o"}},
		}
	}
	timeout := int32(60)
	policy := corev1.ServiceInternalTrafficPolicyLocal
	objects := []runtime.Object{
		&corev1.Service{ObjectMeta: meta("a"), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			Selector:        map[string]string{"app": "x"},
			Ports:           []corev1.ServicePort{{Name: "web", Port: 80, NodePort: 30080}},
			ExternalIPs:     []string{"198.51.100.7"},
			SessionAffinity: corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout},
			},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, InternalTrafficPolicy: &policy,
			HealthCheckNodePort:      32000,
			LoadBalancerSourceRanges: []string{"192.0.2.0/24"}},
			Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: "x"}},
				LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "198.51.100.8"}}}}},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("a-1"), AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: &proto}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1", "10.0.0.2"}, NodeName: &text,
				Zone: &text, Hostname: &text,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Terminating: &yes},
				TargetRef:  &corev1.ObjectReference{Name: "pod"}, DeprecatedTopology: map[string]string{"a": "b"},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}},
					ForNodes: []discoveryv1.ForNode{{Name: "n"}}}}}},
		&corev1.Node{ObjectMeta: meta("n"),
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}, ProviderID: "p"},
			Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"i"}}},
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}},
	}
	for _, o := range objects {
		tracker := tracker.New()
		tracker.Upsert(testSource, o)
		if n := tracker.Changes().Len(); n != 1 {
			t.Fatalf("%T: %d changes, want 1", o, n)
		}
		whole := o.DeepCopyObject()
		trimmed, err := trim(o)
		if err != nil {
			t.Fatal(err)
		}
		tracker.Upsert(testSource, trimmed.(runtime.Object))
		if n := tracker.Changes().Len(); n != 0 {
			t.Errorf("%T: trimming makes a difference to the Tracker", o)
		}
		if m := o.(metav1.Object); len(m.GetManagedFields())+len(m.GetOwnerReferences()) != 0 ||
			m.GetAnnotations()["other"] != "" {
			t.Errorf("%T: kept %+v", o, m)
		}
		if len(whole.(metav1.Object).GetManagedFields()) != 1 {
			t.Errorf("%T: the copy was trimmed, too", o)
		}
	}
}
