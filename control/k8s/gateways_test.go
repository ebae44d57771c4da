package k8s_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// groupNode returns a Node with or without the label of a group, and with source addresses unless
// they are empty.
func groupNode(name string, label bool, sources string) *corev1.Node {
	n := node(name)
	if label {
		n.Labels["example.org/gateway"] = "yes"
	}
	if sources != "" {
		n.Annotations = map[string]string{objects.AnnotationGroupSources: sources}
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	return n
}

// TestGateways: the Nodes of a group are those with the label or the annotation. A Node that loses
// the label stays, one that is deleted does not, also if that happens while the API server is away.
func TestGateways(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Set(groupNode("gw-a", true, "198.51.100.1,198.51.100.2"), groupNode("gw-b", true, ""),
		groupNode("worker", false, ""))
	w, err := k8s.New(k8s.Config{Log: debugHandler(), Client: s.Config(), Tracker: tracker.New(), NodeName: nodeName,
		GroupNodes: "example.org/gateway=yes"})
	if err != nil {
		t.Fatal(err)
	}
	g := w.Gateways()
	if list, state := g.Nodes(); len(list) != 0 || state.Synced || state.Err != "" {
		t.Errorf("before Run there are %v, %+v", list, state)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	are := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			list, state := g.Nodes()
			var texts []string
			for _, n := range list {
				texts = append(texts, fmt.Sprintf("%s %v %v %q %v %v", n.Name, n.Selected, n.OutOfService, n.Sources,
					n.Annotated, n.Addresses))
			}
			got := strings.Join(texts, "\n")
			return state.Synced && got == strings.Join(want, "\n")
		})
	}
	const a, b = `gw-a true false "198.51.100.1,198.51.100.2" true [192.0.2.1]`, `gw-b true false "" false [192.0.2.1]`
	are("two gateways", a, b)
	<-g.Changed()
	s.Set(groupNode("gw-b", false, "198.51.100.3"))
	are("gw-b without the label", a, `gw-b false false "198.51.100.3" true [192.0.2.1]`)
	<-g.Changed()
	gone := groupNode("gw-b", true, "198.51.100.3")
	gone.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown",
		Effect: corev1.TaintEffectNoExecute}}
	s.Set(gone)
	are("gw-b out of service", a, `gw-b true true "198.51.100.3" true [192.0.2.1]`)
	s.Set(groupNode("gw-b", false, ""))
	are("gw-b with neither", a)
	s.Set(groupNode("gw-b", true, ""))
	are("gw-b again", a, b)
	s.Delete(groupNode("gw-b", true, ""))
	are("gw-b deleted", a)
	s.Stop()
	eventually(t, "an error", func() bool {
		list, state := g.Nodes()
		return state.Err != "" && state.Synced && len(list) == 1
	})
	s.Forget(groupNode("gw-a", true, ""))
	s.Set(groupNode("gw-b", true, ""))
	s.Expire()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	are("the Nodes of the next list", b)
	eventually(t, "no error", func() bool { _, state := g.Nodes(); return state.Err == "" })
}

// TestNoSelector: a text that cannot be parsed as a label selector is an error.
func TestNoSelector(t *testing.T) {
	s := k8stest.Start(t)
	if _, err := k8s.New(k8s.Config{Log: debugHandler(), Client: s.Config(), Tracker: tracker.New(),
		GroupNodes: "a=b=c"}); err == nil || !strings.HasPrefix(err.Error(), "group.nodes: ") {
		t.Errorf("got %v", err)
	}
}
