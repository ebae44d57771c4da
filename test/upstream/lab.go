package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"sluice.dev/sluice/test/bed/topo"
)

// Lab is the cluster that cases run in.
type Lab struct {
	Client kubernetes.Interface
	Nodes  [3]string // names by Role
	// Proxy starts kube-proxy on a node, or ends it and removes its rules. It does nothing where
	// that is so already.
	Proxy    func(ctx context.Context, node Role, on bool) error
	Suite    *Suite
	Counters *Counters
	// Log is called with each step of the run.
	Log func(format string, args ...any)
}

// avoidTaint is the key of the taint that keeps pods away that name no node.
const avoidTaint = "sluice.dev/avoid"

// Arrange brings the cluster into an arrangement.
func (l *Lab) Arrange(ctx context.Context, a *Arrangement) error {
	for role := range Role(len(l.Nodes)) {
		if err := l.node(ctx, role, slices.Contains(a.Nodes, role), slices.Contains(a.Avoid, role)); err != nil {
			return err
		}
		proxy := a.KubeProxy && (role != Gateway || a.Everywhere)
		if err := l.Proxy(ctx, role, proxy); err != nil {
			return fmt.Errorf("kube-proxy on %s: %w", l.Nodes[role], err)
		}
	}
	return nil
}

// avoid changes nothing but which nodes are avoided.
func (l *Lab) avoid(ctx context.Context, a *Arrangement, avoided []Role) error {
	var errs []error
	for role := range Role(len(l.Nodes)) {
		errs = append(errs, l.node(ctx, role, slices.Contains(a.Nodes, role), slices.Contains(avoided, role)))
	}
	return errors.Join(errs...)
}

// node says which pods a node takes. Taints of others stay.
func (l *Lab) node(ctx context.Context, role Role, schedulable, avoid bool) error {
	nodes := l.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, l.Nodes[role], metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", l.Nodes[role], err)
	}
	taints := slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == avoidTaint })
	if avoid {
		taints = append(taints, corev1.Taint{Key: avoidTaint, Effect: corev1.TaintEffectPreferNoSchedule})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": !schedulable, "taints": taints}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write node %s: %w", n.Name, err)
	}
	return nil
}

// Result is how a case ended, and the gateway's counters for it.
type Result struct {
	Outcome
	Traffic Traffic
	// Created and Drops are what rose of the whole gateway: flows, and packets dropped by reason.
	// They are the case's if it ran alone.
	Created uint64
	Drops   map[string]uint64
	Alone   bool
}

// Counted reports whether the gateway's own counters rose for a case.
func (r *Result) Counted(c *Case) bool {
	switch {
	case c.By != "":
		return r.Alone && r.Drops[c.By] > 0
	case r.Traffic.Flows > 0 && r.Traffic.ToBackend > 0:
		return true
	}
	// Some cases delete a Service in the second in which they used it, and its counters are not
	// read in time.
	return r.Alone && r.Created > 0
}

// Run runs a case in the arrangement that the cluster is in; alone means that no other runs
// meanwhile.
func (l *Lab) Run(ctx context.Context, c *Case, alone bool, limit time.Duration) (Result, error) {
	before, err := l.Counters.Total(ctx)
	if err != nil {
		return Result{}, err
	}
	if c.In.Then != nil {
		stop, err := l.later(ctx, c.In)
		if err != nil {
			return Result{}, err
		}
		defer stop()
	}
	o, err := l.Suite.Run(ctx, c.Name, limit)
	r := Result{Outcome: o, Alone: alone}
	if err != nil {
		return r, err
	}
	after, err := l.Counters.Total(ctx)
	if err != nil {
		return r, err
	}
	r.Created, r.Drops = after.Created-before.Created, risen(before.Drops, after.Drops)
	for _, namespace := range o.Namespaces {
		t, err := l.Counters.Of(ctx, namespace)
		if err != nil {
			return r, fmt.Errorf("read the gateway's counters: %w", err)
		}
		r.Traffic.Flows += t.Flows
		r.Traffic.ToBackend += t.ToBackend
		r.Traffic.ToClient += t.ToClient
		if err := l.hurry(ctx, namespace); err != nil {
			return r, err
		}
	}
	return r, nil
}

// hurry kills the pods of a case that is over: some would take five minutes to end.
func (l *Lab) hurry(ctx context.Context, namespace string) error {
	now := int64(0)
	err := l.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the pods of %s: %w", namespace, err)
	}
	return nil
}

// frameworkLabel is on every namespace that a case makes (test/e2e/framework, CreateNamespace).
const frameworkLabel = "e2e-framework"

// later changes which nodes are avoided as soon as the first pod of a case is ready. The namespaces
// that are there already are of cases that ended.
func (l *Lab) later(ctx context.Context, a *Arrangement) (stop func(), err error) {
	old, err := l.namespaces(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			if l.anyReady(ctx, old) {
				if err := l.avoid(ctx, a, a.Then); err != nil && ctx.Err() == nil {
					l.Log("%v", err)
				}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() { cancel(); <-done }, nil
}

// namespaces returns the namespaces of cases.
func (l *Lab) namespaces(ctx context.Context) (names []string, err error) {
	list, err := l.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: frameworkLabel})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names, nil
}

// anyReady reports whether a pod of a new namespace is ready.
func (l *Lab) anyReady(ctx context.Context, old []string) bool {
	names, err := l.namespaces(ctx)
	if err != nil {
		return false // it is asked again
	}
	for _, namespace := range names {
		if slices.Contains(old, namespace) {
			continue
		}
		pods, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, p := range pods.Items {
			for _, condition := range p.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					return true
				}
			}
		}
	}
	return false
}

// WaitEmpty waits until the namespaces of all cases are gone: their pods hold resources that the
// next cases need.
func (l *Lab) WaitEmpty(ctx context.Context, limit time.Duration) error {
	return topo.Until(ctx, limit, time.Second, func(ctx context.Context) error {
		left, err := l.namespaces(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("namespaces of cases are left: %s", strings.Join(left, ", "))
		}
		return err
	})
}
