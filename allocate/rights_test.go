package allocate_test

import (
	"bytes"
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// rights are those of the chart's roles.
func rights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	text, err := os.ReadFile("../deploy/manifests/controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var role struct {
			Kind  string
			Rules []rbacv1.PolicyRule
		}
		if err := yaml.Unmarshal(document, &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" || role.Kind == "Role" {
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Fatal("the manifests have no roles")
	}
	return rules
}
