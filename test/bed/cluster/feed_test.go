//go:build root

package cluster

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// gatewayRights are what the documentation of control/k8s requires, with the Node's name.
var gatewayRights = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list",
		"watch"}},
	{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: []string{"gateway"},
		Verbs: []string{"list", "watch"}},
	{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
}

// TestFeed reads a real API server by least privilege: objects arrive, an Event is
// found as kubectl describe looks for it, and a restart of the server changes nothing.
func TestFeed(t *testing.T) {
	c := startCluster(t, Config{})
	ctx := testContext(t)
	user, err := c.ServiceAccount(ctx, "sluice", "gateway", gatewayRights...)
	if err != nil {
		t.Fatal(err)
	}
	objects := []Object{
		NewNode("gateway", "zone-a", netip.MustParseAddr("192.0.2.10")), NewNode("other", "zone-b"),
		feedService("api"), feedService("rival"),
	}
	if err := c.Put(ctx, objects...); err != nil {
		t.Fatal(err)
	}
	api, err := c.Client().CoreV1().Services("default").Get(ctx, "api", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice := NewSlice(api, "x", corev1.IPv4Protocol, NewEndpoint("other", netip.MustParseAddr("10.0.0.1")))
	if err := c.Put(ctx, slice); err != nil {
		t.Fatal(err)
	}
	tracker := tracker.New()
	w, err := k8s.New(k8s.Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Client: c.RESTConfig(user),
		Tracker: tracker, NodeName: "gateway"})
	if err != nil {
		t.Fatal(err)
	}
	life, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(life) }()
	t.Cleanup(func() { cancel(); <-done })
	begin := time.Now()
	for _, f := range w.Feeds() {
		if err := f.Sync(ctx); err != nil {
			t.Fatalf("%v: %v", f.Source(), err)
		}
	}
	t.Logf("synced after %v", time.Since(begin).Round(time.Millisecond))
	tracker.Changes()
	if n := tracker.Node("gateway"); n.Zone != "zone-a" || len(n.Addresses) != 1 || tracker.Node("other").Known {
		t.Errorf("own Node %+v, other Node known %v", n, tracker.Node("other").Known)
	}
	testEvent(ctx, t, c, w)

	if err := c.StopAPIServer(0); err != nil {
		t.Fatal(err)
	}
	until(t, "every source fails", func() bool { return failing(w) == 3 })
	if err := c.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	until(t, "every source works", func() bool { return failing(w) == 0 })
	slice.Endpoints = append(slice.Endpoints, NewEndpoint("other", netip.MustParseAddr("10.0.0.2")))
	if err := c.Put(ctx, slice); err != nil {
		t.Fatal(err)
	}
	n := 0
	until(t, "the changed slice is read", func() bool { n += tracker.Changes().Len(); return n > 0 })
	if n != 1 {
		t.Errorf("%d changes, want the slice alone", n)
	}
}

func feedService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

func failing(w *k8s.Watcher) (n int) {
	for _, s := range w.Status() {
		if s.Err != nil {
			n++
		}
	}
	return n
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a minute later still not: %s", what)
		}
	}
}

// testEvent has a Problem told, twice: an Event, and one more of its series.
func testEvent(ctx context.Context, t *testing.T, c *Cluster, w *k8s.Watcher) {
	t.Helper()
	problem := objects.Problem{
		Source: objects.Source{Kind: k8s.Kind, Path: "services"}, Reason: objects.ReasonFrontendConflict,
		Severity: objects.Refused,
		Object:   objects.ObjectID{Kind: objects.KindService, Namespace: "default", Name: "rival"},
		Field:    "spec.ports[0]", Message: "belongs to another",
	}
	var outstanding atomic.Pointer[[]objects.Problem]
	var looks atomic.Int64
	tell := func(list ...objects.Problem) {
		outstanding.Store(&list)
		// A look begins after the one before has ended.
		seen := looks.Load() + 2
		until(t, "the problems are looked at", func() bool { return looks.Load() >= seen })
	}
	outstanding.Store(&[]objects.Problem{problem})
	life, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.RunEvents(life, func() ([]objects.Problem, <-chan struct{}) {
			looks.Add(1)
			changed := make(chan struct{})
			close(changed)
			return *outstanding.Load(), changed
		})
	}()
	defer func() { cancel(); <-done }()
	rival, err := c.Client().CoreV1().Services("default").Get(ctx, "rival", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As kubectl describe selects (k8s.io/client-go EventExpansion.GetFieldSelector).
	written := func() []corev1.Event {
		events, err := c.Client().CoreV1().Events("default").List(ctx,
			metav1.ListOptions{
				FieldSelector: "involvedObject.kind=Service,involvedObject.name=rival,involvedObject.uid=" +
					string(rival.UID),
			})
		if err != nil {
			t.Fatal(err)
		}
		return events.Items
	}
	until(t, "an Event is written", func() bool { return len(written()) > 0 })
	tell()
	tell(problem)
	until(t, "it is one of a series", func() bool { return written()[0].Series != nil })
	if n := len(written()); n != 1 {
		t.Fatalf("%d Events, want one series", n)
	}
	e := written()[0]
	if e.Reason != "FrontendConflict" || !strings.Contains(e.Message, "belongs to another") || e.Type != "Warning" ||
		e.Series == nil || e.Series.Count != 2 {
		t.Errorf("Event %+v, series %+v", e, e.Series)
	}
}
