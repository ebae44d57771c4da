package tools

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	proxy "k8s.io/kube-proxy/config/v1alpha1"

	"sluice.dev/sluice/config/kubeproxy"
)

// Every field of kube-proxy's own types has a rule in package kubeproxy: this test fails if a new
// version of the types adds a field.
func TestEveryFieldOfKubeProxyHasARule(t *testing.T) {
	known := kubeproxy.Known()
	fields := leaves("", reflect.TypeFor[proxy.KubeProxyConfiguration]())
	if len(fields) < 50 {
		t.Fatalf("only %d fields were found: %v", len(fields), fields)
	}
	for _, path := range fields {
		if !slices.ContainsFunc(known, func(rule string) bool {
			return path == rule ||
				strings.HasPrefix(path, rule+".")
		}) {
			t.Errorf("%s has no rule", path)
		}
	}
}

// leaves are the paths of a type's fields, down to fields with a single value.
func leaves(prefix string, typ reflect.Type) (list []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		switch {
		case f.Name == "TypeMeta" && f.Anonymous, name == "-":
		case f.Anonymous:
			list = append(list, leaves(prefix, f.Type)...)
		case f.Type.Kind() == reflect.Struct && isSection(f.Type):
			list = append(list, leaves(path, f.Type)...)
		default:
			list = append(list, path)
		}
	}
	return list
}

// isSection reports whether a struct is written as a mapping, and not as a single text.
func isSection(typ reflect.Type) bool {
	_, marshals := reflect.PointerTo(typ).MethodByName("UnmarshalJSON")
	return !marshals
}
