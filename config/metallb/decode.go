package metallb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	sigsyaml "sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce/kinds"
)

// conversion is one call of Convert.
type conversion struct {
	options       Options
	theirs        []*unstructured.Unstructured // of metallb.io
	loadBalancers []*corev1.Service
	secrets       map[string]*corev1.Secret // by namespace/name
	namespaces    map[string]map[string]string
	own           []converted
	result        *Result
}

// decode reads the documents of a file.
func (c *conversion) decode(in Input) error {
	decoder := yaml.NewDecoder(bytes.NewReader(in.Data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var o map[string]any
		if err == nil {
			o, err = toObject(&document)
		}
		if err == nil && len(o) > 0 {
			err = c.add(&unstructured.Unstructured{Object: o})
		}
		if err != nil {
			return fmt.Errorf("%s: document %d: %w", in.Name, n, err)
		}
	}
}

func toObject(document *yaml.Node) (o map[string]any, err error) {
	text, err := yaml.Marshal(document)
	if err == nil {
		err = sigsyaml.Unmarshal(text, &o)
	}
	return o, err
}

// add adds an object, or the objects of a list.
func (c *conversion) add(o *unstructured.Unstructured) error {
	if o.GetAPIVersion() == "" || o.GetKind() == "" {
		return errors.New("apiVersion and kind are missing: this is not a Kubernetes object")
	}
	if strings.HasSuffix(o.GetKind(), "List") {
		items, _, err := unstructured.NestedSlice(o.Object, "items")
		for i, item := range items {
			one, ok := item.(map[string]any)
			if !ok {
				return fmt.Errorf("items[%d] is no object", i)
			}
			if err := c.add(&unstructured.Unstructured{Object: one}); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return err
	}
	if o.GetName() == "" {
		return fmt.Errorf("%s: metadata.name is missing", o.GetKind())
	}
	group, _, _ := strings.Cut(o.GetAPIVersion(), "/")
	switch of := o.GetAPIVersion() + " " + o.GetKind(); {
	case group == kinds.MetalLB && !slices.Contains(statusKinds, o.GetKind()):
		c.theirs = append(c.theirs, o)
	case of == "v1 Service":
		return c.addService(o)
	case of == "v1 Secret":
		return c.addSecret(o)
	case of == "v1 Namespace":
		if c.namespaces == nil {
			c.namespaces = map[string]map[string]string{}
		}
		c.namespaces[o.GetName()] = nonNil(o.GetLabels())
	default:
		c.result.Skipped[o.GetKind()]++
	}
	return nil
}

func nonNil(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

func (c *conversion) addService(o *unstructured.Unstructured) error {
	s := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s); err != nil {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if s.Namespace == "" {
		s.Namespace = corev1.NamespaceDefault
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		c.loadBalancers = append(c.loadBalancers, s)
	}
	return nil
}

func (c *conversion) addSecret(o *unstructured.Unstructured) error {
	s := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s); err != nil {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	for name, value := range s.StringData { // the API server merges them in the same way
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[name] = []byte(value)
	}
	if c.secrets == nil {
		c.secrets = map[string]*corev1.Secret{}
	}
	c.secrets[s.Namespace+"/"+s.Name] = s
	return nil
}
