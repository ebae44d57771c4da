package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// fieldManager is who applies (Kubernetes: Server-Side Apply).
const fieldManager = "sluice-test"

// Apply writes objects of any kind, YAML documents, as `kubectl apply --server-side` does: it
// updates objects that exist. A field that the API server does not know is an error.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	return c.ApplyObjects(ctx, objects...)
}

// ApplyObjects is Apply for objects of kinds that the API server has already.
func (c *Cluster) ApplyObjects(ctx context.Context, objects ...*unstructured.Unstructured) error {
	return c.forEach(objects, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		yes := true
		_, err = r.Patch(ctx, o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
			FieldManager: fieldManager, Force: &yes, FieldValidation: metav1.FieldValidationStrict,
		})
		return err
	})
}

// Remove deletes the objects, the last first, as `helm uninstall` does, and all objects that they
// own. One that does not exist is as good as deleted.
func (c *Cluster) Remove(ctx context.Context, manifests []byte) error {
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	slices.Reverse(objects)
	return c.forEach(objects, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		policy := metav1.DeletePropagationBackground
		err := r.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (c *Cluster) forEach(
	objects []*unstructured.Unstructured, f func(dynamic.ResourceInterface, *unstructured.Unstructured) error,
) error {
	client, err := dynamic.NewForConfig(c.RESTConfig(c.Admin()))
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(c.Client().Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	var errs []error
	for _, o := range objects {
		kind := o.GroupVersionKind()
		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var r dynamic.ResourceInterface = client.Resource(m.Resource)
		if m.Scope.Name() == "namespace" {
			r = client.Resource(m.Resource).Namespace(namespaceOf(o))
		}
		if err := f(r, o); err != nil {
			errs = append(errs, fmt.Errorf("%s %s/%s: %w", kind.Kind, o.GetNamespace(), o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// Decode reads YAML documents.
func Decode(manifests []byte) (objects []*unstructured.Unstructured, err error) {
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("manifests: %w", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}
