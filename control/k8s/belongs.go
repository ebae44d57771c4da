package k8s

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/wake"
)

// Belongs names the objects that make this process's node a gateway. If they are gone, no process
// follows one that ends: unlike in a rolling update, it leaves nothing behind.
type Belongs struct {
	// NodeSelector selects the Nodes that are gateways, as a label selector; "" is not looked at.
	NodeSelector string
	// DaemonSet runs the gateways: namespace/name; "" is not looked at.
	DaemonSet string
}

// presence watches for one object. It counts as gone only if it was there before: a selector that
// never matched is no evidence.
type presence struct {
	cache.Store
	w      *Watcher
	client rest.Interface
	kind   runtime.Object // an example
	path   string
	labels string
	in     string // namespace
	name   string
	gone   string // the meaning of its absence, for messages
	seen   atomic.Bool
}

// presences returns the objects that the Watcher looks at for Leaving.
func (w *Watcher) presences() (list []*presence) {
	add := func(p *presence) {
		p.Store, p.w = cache.NewStore(cache.MetaNamespaceKeyFunc), w
		list = append(list, p)
	}
	if s := w.Belongs.NodeSelector; s != "" {
		add(&presence{client: w.clients.core, kind: &corev1.Node{}, path: "nodes", labels: s, name: w.NodeName,
			gone: fmt.Sprintf("Node %s does not match %s any more", w.NodeName, s)})
	}
	if namespace, name, ok := strings.Cut(w.Belongs.DaemonSet, "/"); ok {
		add(&presence{client: w.clients.apps, kind: &appsv1.DaemonSet{}, path: "daemonsets", in: namespace, name: name,
			gone: fmt.Sprintf("DaemonSet %s was deleted", w.Belongs.DaemonSet)})
	}
	return list
}

// Leaving returns why no other gateway follows on this node, or "" if one may.
func (w *Watcher) Leaving() string {
	for _, p := range w.belongs {
		if p.seen.Load() && !p.stays() {
			return p.gone
		}
	}
	return ""
}

// stays reports whether the object is there, and not only until its dependents are gone (foreground
// deletion: the garbage collector ends the pods first).
func (p *presence) stays() bool {
	return slices.ContainsFunc(p.List(), func(o any) bool {
		m, err := meta.Accessor(o)
		return err != nil || m.GetDeletionTimestamp() == nil
	})
}

// Add implements cache.Store.
func (p *presence) Add(object any) error {
	p.seen.Store(true)
	return p.Store.Add(object)
}

// Replace implements cache.Store.
func (p *presence) Replace(list []any, version string) error {
	if len(list) > 0 {
		p.seen.Store(true)
	}
	return p.Store.Replace(list, version)
}

// run watches until ctx is done.
func (p *presence) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = p.reflect(ctx) // the log has it
		wake.After(ctx, restartAfter)
	}
}

func (p *presence) reflect(ctx context.Context) error {
	lw := cache.NewFilteredListWatchFromClient(p.client, p.path, p.in, func(o *metav1.ListOptions) {
		o.LabelSelector = p.labels
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.name).String()
	})
	return p.w.reflect(ctx, "own-"+p.path, lw, p.kind, p)
}
