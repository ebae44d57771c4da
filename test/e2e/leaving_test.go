//go:build root

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/test/bed/topo"
)

// TestNoGatewayAnyMore: in spite of drain.handOver a process that ends leaves nothing on its node
// after the Node lost the label of gateways, or the DaemonSet was deleted; in a rolling update it
// leaves all of it.
func TestNoGatewayAnyMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(s *k8stest.Server, node *corev1.Node, set *appsv1.DaemonSet)
		why    string
	}{
		{"label removed", func(s *k8stest.Server, node *corev1.Node, _ *appsv1.DaemonSet) {
			node.Labels = nil
			s.Set(node)
		}, "does not match example.org/gateway=yes any more"},
		{"DaemonSet deleted", func(s *k8stest.Server, _ *corev1.Node, set *appsv1.DaemonSet) { s.Delete(set) },
			"DaemonSet edge/sluice was deleted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode,
				Labels: map[string]string{"example.org/gateway": "yes"}}}
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "sluice"}}
			var s *k8stest.Server
			l := newLab(t, labConfig{
				Config: topo.Config{Queues: 1, Backends: 2}, small: true,
				options: handsOver + fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s, "+
					"nodeSelector: example.org/gateway=yes, daemonSet: edge/sluice}\n", kubeconfig),
				prepare: func(l *lab) {
					s = apiServer(t, l.Gateway, kubeconfig)
					s.Set(node, set)
				},
			})
			l.handOver() // nothing has changed: a rolling update
			if err := l.gate.Start(l.ctx); err != nil {
				t.Fatal(err)
			}
			l.watched(s)
			c.change(s, node, set)
			time.Sleep(200 * time.Millisecond) // the change arrives before SIGTERM does, as in a cluster
			if err := l.gate.Stop(); err != nil {
				t.Fatalf("%v\n%s", err, l.gate.Log())
			}
			if left, err := l.gate.Leftovers(); err != nil || len(left) > 0 {
				t.Errorf("left on the node: %q, %v", left, err)
			}
			if !strings.Contains(l.gate.Log(), c.why) {
				t.Errorf("no line %q in the log\n%s", c.why, l.gate.Log())
			}
			if err := l.gate.Start(l.ctx); err != nil {
				t.Fatal(err)
			}
			l.handOverNoMore() // it never saw what is gone
		})
	}
}

// watched waits until both processes of the test have listed what makes them gateways.
func (l *lab) watched(s *k8stest.Server) {
	l.t.Helper()
	l.eventually(20*time.Second, "two lists of DaemonSets and four of Nodes", func() bool {
		return s.Lists("daemonsets") >= 2 && s.Lists("nodes") >= 4
	})
}
