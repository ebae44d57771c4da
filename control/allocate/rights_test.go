package allocate_test

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// rights are those of the chart's roles.
func rights(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"sluice.dev"}, Resources: []string{"addresspools"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"metallb.io"}, Resources: []string{"ipaddresspools"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
			ResourceNames: []string{"sluice-controller"}, Verbs: []string{"get", "update"}},
	}
}
