package allocate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// The kinds of pools.
var (
	addressPools   = schema.GroupVersionResource{Group: "sluice.dev", Version: "v1alpha1", Resource: "addresspools"}
	ipAddressPools = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
)

// newInformer returns an informer whose first list is what the API server has now, and not what a
// cache of it had some time ago: a claim that is not seen would be given to another Service.
func newInformer(
	example runtime.Object,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			return list(ctx, o)
		},
		WatchFuncWithContext: follow,
	}
	return cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
}

func newServices(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	api := client.CoreV1().Services(metav1.NamespaceAll)
	i := newInformer(&corev1.Service{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return api.List(ctx, o)
	}, api.Watch)
	return i, i.SetTransform(withoutManagedFields)
}

func newNamespaces(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	api := client.CoreV1().Namespaces()
	i := newInformer(&corev1.Namespace{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return api.List(ctx, o)
	}, api.Watch)
	return i, i.SetTransform(withoutManagedFields)
}

func newPools(client dynamic.Interface, resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	api := client.Resource(resource)
	i := newInformer(&unstructured.Unstructured{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) }, api.Watch)
	return i, i.SetTransform(withoutManagedFields)
}

// withoutManagedFields halves what an object takes.
func withoutManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// served reports whether the API server has a kind. The discovery client's own methods cannot be
// interrupted, and wait for half a minute.
func served(ctx context.Context, client discovery.DiscoveryInterface, kind schema.GroupVersionResource) (bool, error) {
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
