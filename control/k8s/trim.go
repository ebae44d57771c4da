package k8s

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/objects"
)

// trim removes fields that are never read. It is client-go's TransformFunc for objects of a list as
// they arrive. It saves memory only: the Tracker keeps even less.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Service:
		trimMeta(&o.ObjectMeta)
		o.Spec.Selector, o.Status.Conditions = nil, nil
	case *discoveryv1.EndpointSlice:
		trimMeta(&o.ObjectMeta)
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Hostname, e.DeprecatedTopology = nil, nil, nil
			if len(e.Addresses) > 1 {
				e.Addresses = e.Addresses[:1]
			}
		}
	case *corev1.Node:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	}
	return object, nil
}

// trimMeta keeps the annotations that are read and the labels of Kubernetes' own.
func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.OwnerReferences, m.Finalizers, m.GenerateName = nil, nil, nil, ""
	for k := range m.Annotations {
		if k != corev1.EndpointsLastChangeTriggerTime && !objects.ReadAnnotation(k) {
			delete(m.Annotations, k)
		}
	}
	for k := range m.Labels {
		if !strings.Contains(k, "kubernetes.io/") {
			delete(m.Labels, k)
		}
	}
}

// idOf returns the ID and version of an object; ok is false if it is not of the three kinds.
func idOf(object any) (id objects.ObjectID, version string, ok bool) {
	switch o := object.(type) {
	case *corev1.Service:
		return objects.ObjectID{Kind: objects.KindService, Namespace: o.Namespace, Name: o.Name}, o.ResourceVersion,
			true
	case *discoveryv1.EndpointSlice:
		return objects.ObjectID{Kind: objects.KindEndpointSlice, Namespace: o.Namespace, Name: o.Name},
			o.ResourceVersion, true
	case *corev1.Node:
		return objects.ObjectID{Kind: objects.KindNode, Name: o.Name}, o.ResourceVersion, true
	}
	return id, "", false
}
