//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

const gatewayLabel = "sluice.dev/gateway"

// groupNode returns the Node of a gateway, with its source addresses in the annotation.
func (l *groupLab) groupNode(i int) *corev1.Node {
	h := l.Gateways[i]
	n := cluster.NewNode(fmt.Sprintf("gw-%d", i), "", h.Addr4(), h.Addr6())
	n.Labels[gatewayLabel] = "true"
	var sources []string
	for _, a := range groupSources(i) {
		sources = append(sources, a.String())
	}
	n.Annotations = map[string]string{objects.AnnotationGroupSources: strings.Join(sources, ",")}
	return n
}

// names waits until a gateway has these others, all of them in step.
func (l *groupLab) names(i int, want string) {
	l.t.Helper()
	l.group(i, "in step with "+want, func(v *status.GroupView) bool {
		var names []string
		for _, m := range v.Members {
			if !m.HasOurFlows || !m.WeHaveItsFlows || m.Lag > 0 {
				return false
			}
			names = append(names, m.Name)
		}
		return strings.Join(names, " ") == want && v.Complete
	})
}

// problem waits until a gateway reports a problem of a Node, or none for an empty text.
func (l *groupLab) problem(i int, node, text string) {
	l.t.Helper()
	is := func() (found string) {
		v, err := l.gates[i].Client.Status(l.ctx, false)
		l.must(err)
		for _, p := range v.Problems {
			if p.Object == objects.KindNode+" "+node || strings.HasPrefix(p.Object, objects.KindNode+" "+node+" ") {
				found += p.Message
			}
		}
		return found
	}
	deadline := time.Now().Add(machine.Slower(20 * time.Second))
	for got := is(); !strings.Contains(got, text) || text == "" && got != ""; got = is() {
		if time.Now().After(deadline) {
			l.t.Fatalf("gw-%d reports %q of Node %s, want %q", i, got, node, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestGroupOfNodes: the members of a group are Nodes of an API server. A third gateway joins when
// its Node has labels and addresses, while connections are open; one that is killed is removed for
// good by the taint, and its connections go on at the others, also at their next processes: no
// other Node gets its addresses.
func TestGroupOfNodes(t *testing.T) {
	clustertest.Need(t)
	const flows = 100
	l := newGroupNet(t, 3)
	api := clustertest.Start(l.ctx, t, cluster.Config{})
	start := func(i int) {
		t.Helper()
		kubeconfig, err := api.Gateway(l.ctx, l.Gateways[i])
		l.must(err)
		l.must(l.gateway(i, "  nodes: "+gatewayLabel+"=true\n", fmt.Sprintf(
			"kubernetes: {enabled: true, kubeconfig: %s}\n", kubeconfig)).Launch())
	}
	l.must(api.Put(l.ctx, l.groupNode(0), l.groupNode(1)))
	ready := func(i int) {
		t.Helper()
		_, err := l.gates[i].Applied(l.ctx)
		l.must(err)
	}
	for i := range 2 {
		start(i)
		ready(i)
	}
	l.vipsBy(0)
	l.sourcesBy(0, 0)
	l.sourcesBy(1, 1)
	l.sourcesBy(2, 2)
	l.names(0, "gw-1")
	l.names(1, "gw-0")
	l.inStep()
	load := l.connect(flows)
	goOn := func(when string, load *topo.Flows) {
		t.Helper()
		l.must(load.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 2))
		if n := load.Broken(); n > 0 {
			t.Errorf("%s %d connections have ended", when, n)
		}
	}
	goOn("at first", load)

	bare := l.groupNode(2)
	bare.Annotations = nil
	l.must(api.Put(l.ctx, bare))
	start(2)
	l.problem(0, "gw-2", "is missing: write two source addresses of each family")
	l.must(topo.Until(l.ctx, machine.Slower(20*time.Second), 10*time.Millisecond, func(context.Context) error {
		if !strings.Contains(l.gates[2].Log(), "this gateway waits until it is a member of its group") {
			return errors.New("gw-2 does not wait until it is a member")
		}
		return nil
	}))
	taken := l.groupNode(2)
	taken.Annotations = l.groupNode(0).Annotations
	l.must(api.Put(l.ctx, taken))
	l.problem(0, "gw-2", "which Node gw-0 has, too")
	l.names(0, "gw-1")

	l.must(api.Put(l.ctx, l.groupNode(2)))
	ready(2)
	l.problem(0, "gw-2", "")
	l.names(0, "gw-1 gw-2")
	l.names(1, "gw-0 gw-2")
	l.names(2, "gw-0 gw-1")
	l.inStep()
	goOn("when a third gateway has joined,", load)
	l.group(2, "with a copy of each", func(v *status.GroupView) bool { return v.Members[0].Copies == flows })

	l.must(l.gates[0].Kill())
	l.vipsBy(2)
	l.sourcesBy(0, 2)
	goOn("after the death of the first gateway", load)
	gone := l.groupNode(0)
	gone.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown",
		Effect: corev1.TaintEffectNoExecute}}
	l.must(api.Put(l.ctx, gone))
	l.names(1, "gw-2")
	l.names(2, "gw-1")
	goOn("when the first gateway is removed for good,", load)
	more := l.connect(20)
	goOn("when the first gateway is removed for good,", more)
	other := l.groupNode(0)
	other.Name = "gw-3"
	l.must(api.Put(l.ctx, other))
	all := slices.Concat(groupSources(0), groupSources(1), groupSources(2))
	slices.SortFunc(all, netip.Addr.Compare)
	for i := 1; i < 3; i++ {
		l.announces(i, all)
		l.problem(i, "gw-3", "has an address of Node gw-0, which was removed")
	}
	l.group(1, "with copies of the new ones", func(v *status.GroupView) bool { return v.Members[0].Copies == 20 })

	for _, next := range []func(g *launch.Gateway) error{
		func(g *launch.Gateway) error { return errors.Join(g.LaunchNext(), g.TakenOver(l.ctx)) },
		func(g *launch.Gateway) error { return errors.Join(g.Kill(), g.Launch()) },
	} {
		l.must(next(l.gates[1]))
		ready(1)
		l.names(1, "gw-2")
		l.announces(1, all)
		goOn("with the next process of another one,", load)
		l.problem(1, "gw-3", "has an address of Node gw-0, which was removed")
	}
	l.must(api.Delete(l.ctx, other))
	load.Finish()
	more.Finish()
	for i := 1; i < 3; i++ {
		l.group(i, "without held ports", func(v *status.GroupView) bool { return v.HeldPorts == 0 })
	}
	if n := load.Broken() + more.Broken(); n > 0 {
		t.Errorf("%d connections have ended", n)
	}
}
