// Package kubewatch has what controllers of Sluice that use client-go's informers share: how they
// list, how they ask for kinds that may be missing, and Events.
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

// NewInformer returns an informer of the objects that list and follow return, or of the one with a
// name, if that is not empty: the API server authorizes such a request by the name (resourceNames
// of a Role). Its first list is read from the API server's storage and not from the server's cache,
// which may be older: an address whose claim is missing there would be given to another Service.
// The objects that it keeps have no managedFields.
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

// Beating returns handlers that do the same, with a heartbeat: an informer calls them one after
// another, and one that does not return stops all that follow.
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

// Patience is how long a list must have failed before it is taken for one that will: an API server
// that starts refuses all until it has read its roles.
const Patience = 2 * time.Second

// OnListError has a function called, by one goroutine, each time that the objects of an informer
// cannot be listed, until they were once; lasts says that they could not for Patience, other that
// the error is not the one of the time before. The informer tries again for ever, after 0.8 s at
// first and a minute at last, and HasSynced says nothing of that. The function logs the error:
// client-go, which would with each try, is silent until then. Call it before the informer runs.
func OnListError(i cache.SharedIndexInformer, failed func(err error, lasts, other bool)) error {
	var since time.Time
	said := ""
	return i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() != nil || i.HasSynced() {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		if since.IsZero() {
			since = time.Now()
		}
		other := err.Error() != said
		said = err.Error()
		failed(err, time.Since(since) >= Patience, other)
	})
}

// withoutManagedFields halves what an object takes.
func withoutManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Served reports whether the API server has a kind. The discovery client's own methods cannot be
// interrupted, and wait for half a minute.
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
