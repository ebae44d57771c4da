package k8s

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/wake"
)

// Gateways has the Nodes whose gateways are a group. It is the store of a Reflector of all Nodes,
// because a Node that loses its labels differs from a deleted one. It keeps only Nodes with the
// labels or the annotation.
type Gateways struct {
	w        *Watcher
	selector labels.Selector
	changed  wake.Flag

	mu    sync.Mutex // guards the fields below
	nodes map[string]objects.GatewayNode
	state GatewaysState
}

// GatewaysState is the state of the list and watch of Gateways.
type GatewaysState struct {
	// Synced: they have been listed once.
	Synced bool
	// Err is why they cannot be listed or watched, empty if they can.
	Err string
}

var _ cache.TransformingStore = (*Gateways)(nil)

func newGateways(w *Watcher) (*Gateways, error) {
	s, err := labels.Parse(w.GroupNodes)
	if err != nil {
		return nil, fmt.Errorf("group.nodes: %w", err)
	}
	return &Gateways{w: w, selector: s, changed: wake.NewFlag(), nodes: map[string]objects.GatewayNode{}}, nil
}

// Gateways returns the Nodes whose gateways are the group of Config.GroupNodes; nil without one.
func (w *Watcher) Gateways() *Gateways { return w.gateways }

// Nodes returns the Nodes by name. Any goroutine may call it.
func (g *Gateways) Nodes() ([]objects.GatewayNode, GatewaysState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.nodes), objects.CompareGatewayNodes), g.state
}

// Changed receives when Nodes may return something else. It is for one goroutine.
func (g *Gateways) Changed() <-chan struct{} { return g.changed }

// update changes the Nodes or the state.
func (g *Gateways) update(change func()) {
	g.mu.Lock()
	before := g.state
	nodes := maps.Clone(g.nodes)
	change()
	same := before == g.state && maps.EqualFunc(nodes, g.nodes, func(a, b objects.GatewayNode) bool {
		return a.Equal(&b)
	})
	g.mu.Unlock()
	if !same {
		g.changed.Raise()
	}
}

// put takes the version of an object. g.mu must be held.
func (g *Gateways) put(object any) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	if of, member := objects.TrimGatewayNode(n, g.selector); member {
		g.nodes[n.Name] = of
	} else {
		delete(g.nodes, n.Name)
	}
}

// Add implements cache.ReflectorStore.
func (g *Gateways) Add(object any) error {
	g.update(func() { g.put(object) })
	return nil
}

// Update implements cache.ReflectorStore.
func (g *Gateways) Update(object any) error { return g.Add(object) }

// Delete implements cache.ReflectorStore.
func (g *Gateways) Delete(object any) error {
	if n, ok := object.(*corev1.Node); ok {
		g.update(func() { delete(g.nodes, n.Name) })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (g *Gateways) Replace(list []any, _ string) error {
	g.update(func() {
		g.nodes = map[string]objects.GatewayNode{}
		for _, o := range list {
			g.put(o)
		}
		g.state = GatewaysState{Synced: true}
	})
	return nil
}

// Resync implements cache.ReflectorStore; nothing calls it.
func (g *Gateways) Resync() error { return nil }

// Transformer implements cache.TransformingStore. It removes fields that are never read.
func (g *Gateways) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if n, ok := object.(*corev1.Node); ok {
			n.ManagedFields, n.OwnerReferences = nil, nil
			n.Spec = corev1.NodeSpec{Taints: n.Spec.Taints}
			n.Status = corev1.NodeStatus{Addresses: n.Status.Addresses}
		}
		return object, nil
	}
}

// run watches until ctx is done.
func (g *Gateways) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := g.reflect(ctx); err != nil {
			g.update(func() { g.state.Err = err.Error() })
		}
		wake.After(ctx, restartAfter)
	}
}

func (g *Gateways) reflect(ctx context.Context) error {
	lw := cache.NewFilteredListWatchFromClient(g.w.clients.core, "nodes", metav1.NamespaceAll,
		func(*metav1.ListOptions) {})
	return g.w.reflect(ctx, "gateways", noting(lw, g.note), &corev1.Node{}, g)
}

// note records the result of a request.
func (g *Gateways) note(ctx context.Context, err error, watching bool) error {
	switch {
	case err == nil && watching:
		g.update(func() { g.state.Err = "" })
	case err != nil && ctx.Err() == nil && !retried(err, watching):
		g.update(func() { g.state.Err = err.Error() })
	}
	return err
}
