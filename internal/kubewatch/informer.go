// Package kubewatch has the code that controllers with client-go informers share: listing and
// watching, queries for kinds that may not be installed, and Events.
package kubewatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/heartbeat"
)

// NewInformer returns an informer of the objects that list and follow return. If name is not empty,
// it watches only the object with that name: the API server authorizes such a request by the name
// (resourceNames of a Role). The informer reads its first list from the API server's storage, not
// from its watch cache: the cache may be older, and an address whose claim is missing in it would
// be given to a second Service. Stored objects have no managedFields.
func NewInformer[L runtime.Object](
	example runtime.Object, name string,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (cache.SharedIndexInformer, error) {
	only := ""
	if name != "" {
		only = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			o.FieldSelector = only
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return follow(ctx, o)
		},
	}
	i := cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
	return i, i.SetTransform(withoutManagedFields)
}

// Beating returns handlers that call h's handlers and report a heartbeat. An informer calls its
// handlers one after another, so one that does not return blocks all later events.
func Beating(b *heartbeat.Beat, h cache.ResourceEventHandlerFuncs) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			defer beat(b)()
			h.AddFunc(o)
		},
		UpdateFunc: func(before, now any) {
			defer beat(b)()
			h.UpdateFunc(before, now)
		},
		DeleteFunc: func(o any) {
			defer beat(b)()
			h.DeleteFunc(o)
		},
	}
}

func beat(b *heartbeat.Beat) (rest func()) {
	b.Beat()
	return b.Rest
}

// Patience is how long lists must fail before the failure counts as persistent: an API server that
// starts rejects all requests until it has read its roles.
const Patience = 2 * time.Second

// OnListError calls failed, from one goroutine, whenever the first list of an informer fails.
// persistent: lists have failed for Patience. changed: the error differs from the previous one. The
// informer retries for ever, at first after 0.8 s, later once a minute, and HasSynced does not
// report the failure. failed must log the error: client-go's own log of it, one line per attempt,
// is off until the first list has succeeded. Call OnListError before the informer runs.
func OnListError(i cache.SharedIndexInformer, failed func(err error, persistent, changed bool)) error {
	var since time.Time
	lastError := ""
	return i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() != nil || i.HasSynced() {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		if since.IsZero() {
			since = time.Now()
		}
		changed := err.Error() != lastError
		lastError = err.Error()
		failed(err, time.Since(since) >= Patience, changed)
	})
}

// withoutManagedFields halves the memory that an object takes.
func withoutManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Served reports whether the API server serves a kind. It does not use the discovery client's own
// methods: they cannot be cancelled and block for half a minute.
func Served(ctx context.Context, client discovery.DiscoveryInterface, kind schema.GroupVersionResource) (bool, error) {
	path := "/apis/" + kind.GroupVersion().String()
	var list metav1.APIResourceList
	err := client.RESTClient().Get().AbsPath(path).Do(ctx).Into(&list)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the API server for %s: %w", kind.GroupResource(), err)
	}
	is := func(r metav1.APIResource) bool { return r.Name == kind.Resource }
	return slices.ContainsFunc(list.APIResources, is), nil
}
