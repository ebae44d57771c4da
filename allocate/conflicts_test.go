package allocate

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"sluice.dev/sluice/allocate/pools"
)

// TestTwoControllers: another client also writes a Service's status, after each write of this
// controller. The controller writes it some tens of times within an hour, one Event names the other
// client, and the Service has its address soon after the other client has stopped.
func TestTwoControllers(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(*corev1.ServiceStatus){
		"another address": func(s *corev1.ServiceStatus) {
			s.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
		},
		"a name": func(s *corev1.ServiceStatus) {
			s.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
		},
		"nothing":      func(s *corev1.ServiceStatus) { *s = corev1.ServiceStatus{} },
		"no condition": func(s *corev1.ServiceStatus) { s.Conditions = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { twoControllers(t, other) })
		})
	}
}

func twoControllers(t *testing.T, other func(*corev1.ServiceStatus)) {
	b := newBench(t, balancer("a", nil))
	defer b.queue.ShutDown()
	at := time.Now()
	b.client.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		o, err := b.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("services"), "default", "a")
		if s, is := o.(*corev1.Service); is { // the tracker has fields of its own
			s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: UserAgent, Subresource: "status"},
				{Manager: "old", Subresource: "status", Time: &metav1.Time{Time: at}},
				{Manager: "rival", Subresource: "status", Time: &metav1.Time{Time: time.Now()}},
				{Manager: "kubectl", Time: &metav1.Time{Time: time.Now()}}}
		}
		return true, o, err
	})
	b.pools(pools.Spec{Addresses: []string{"192.0.2.0/30"}})
	version := 100
	for end := at.Add(time.Hour); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		before := b.writes
		b.must("a")
		if b.writes == before {
			continue
		}
		b.look("a")
		b.must("a") // the cache has the controller's own write
		s := b.look("a").DeepCopy()
		other(&s.Status)
		version++
		s.ResourceVersion = fmt.Sprint(version)
		kind := corev1.SchemeGroupVersion.WithResource("services")
		if err := b.client.Tracker().Update(kind, s, "default"); err != nil {
			t.Fatal(err)
		}
		b.look("a")
	}
	t.Logf("the status was written %d times within an hour", b.writes)
	if b.writes > 60 {
		t.Errorf("the status was written %d times within an hour", b.writes)
	}
	var notes []string
	for _, n := range b.events.Waiting() {
		if n.Reason == contested {
			notes = append(notes, n.Note)
		}
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "field manager rival also writes") {
		t.Errorf("the Events about it are %q", notes)
	}
	for end := time.Now().Add(lastPause + time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		b.must("a")
		b.look("a")
	}
	b.has("a", "192.0.2.0")
}
