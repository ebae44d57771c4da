package k8s_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/tracker"
)

// gatewayNode is the own Node, with the label of gateways or without it.
func gatewayNode(label bool) *corev1.Node {
	n := node(nodeName)
	if label {
		n.Labels["example.org/gateway"] = "yes"
	}
	return n
}

func daemonSet(name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: name}}
}

// TestLeaving: a gateway leaves when its Node does not match any more or its DaemonSet is deleted,
// also if that happened while the API server was away; not because something never was there, and
// not for good.
func TestLeaving(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Allow = func(verb, group, resource string) bool {
		return slices.Contains(append(rights, k8stest.Request{Verb: "list", Group: "apps", Resource: "daemonsets"},
			k8stest.Request{Verb: "watch", Group: "apps", Resource: "daemonsets"}),
			k8stest.Request{Verb: verb, Group: group, Resource: resource})
	}
	s.Set(gatewayNode(false), daemonSet("another"))
	w, err := k8s.New(k8s.Config{Log: debugHandler(), Client: s.Config(), Tracker: tracker.New(), NodeName: nodeName,
		Belongs: k8s.Belongs{NodeSelector: "example.org/gateway=yes", DaemonSet: "edge/sluice"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	is := func(what, why string) {
		t.Helper()
		eventually(t, what, func() bool {
			got := w.Leaving()
			return strings.Contains(got, why) && (why == "") == (got == "")
		})
	}
	const noNode, noSet = "does not match example.org/gateway=yes", "edge/sluice was deleted"

	eventually(t, "a list of DaemonSets and two of Nodes", func() bool {
		return s.Lists("daemonsets") == 1 && s.Lists("nodes") == 2
	})
	if why := w.Leaving(); why != "" {
		t.Errorf("leaves because of what never was there: %s", why)
	}
	s.Set(gatewayNode(true), daemonSet("sluice"))
	s.Set(gatewayNode(false))
	is("leaving without the label", noNode)
	s.Set(gatewayNode(true))
	is("staying with the label again", "")
	s.Delete(daemonSet("sluice"))
	is("leaving without the DaemonSet", noSet)
	s.Set(daemonSet("sluice"))
	is("staying with the DaemonSet again", "")
	// Deleted in the foreground: it stays until its pods are gone.
	set, now := daemonSet("sluice"), metav1.Now()
	set.DeletionTimestamp, set.Finalizers = &now, []string{metav1.FinalizerDeleteDependents}
	s.Set(set)
	is("leaving while the DaemonSet is deleted", noSet)
	s.Set(daemonSet("sluice"))
	is("staying with a new one", "")
	s.Stop()
	s.Forget(gatewayNode(true))
	s.Expire()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	is("leaving without a Node, by a list", noNode)
}
