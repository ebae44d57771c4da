package allocate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sluice.dev/sluice/internal/kubewatch"
)

// The kinds of pools.
var (
	addressPools   = schema.GroupVersionResource{Group: "sluice.dev", Version: "v1alpha1", Resource: "addresspools"}
	ipAddressPools = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
)

func newServices(client kubernetes.Interface) (*kubewatch.Informer, error) {
	api := client.CoreV1().Services(metav1.NamespaceAll)
	return kubewatch.NewInformer(&corev1.Service{}, "", api.List, api.Watch)
}

func newNamespaces(client kubernetes.Interface) (*kubewatch.Informer, error) {
	api := client.CoreV1().Namespaces()
	return kubewatch.NewInformer(&corev1.Namespace{}, "", api.List, api.Watch)
}

// newPools returns an informer of the pools in a namespace; "" for a cluster-scoped kind.
func newPools(
	client dynamic.Interface, resource schema.GroupVersionResource, namespace string,
) (*kubewatch.Informer, error) {
	api := client.Resource(resource).Namespace(namespace)
	return kubewatch.NewInformer(&unstructured.Unstructured{}, "", api.List, api.Watch)
}
