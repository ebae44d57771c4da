package objects

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestForwarding checks which Services have direct return, and the problems of other Services.
func TestForwarding(t *testing.T) {
	const key = "sluice.dev/forwarding"
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		cluster     bool
		want        bool
		problem     string
	}{
		{"none", nil, false, false, ""},
		{"nat", map[string]string{key: "nat"}, true, false, ""},
		{"direct", map[string]string{key: " direct\n"}, false, true, ""},
		{"policy Cluster", map[string]string{key: "direct"}, true, false, "needs spec.externalTrafficPolicy: Local"},
		{"misspelt", map[string]string{key: "Direkt"}, false, false, "did you mean direct?"},
		{"empty", map[string]string{key: ""}, false, false, `"" is none of nat, direct`},
		{"long", map[string]string{key: strings.Repeat("\x1b", 100_000)}, false, false, "is none of nat, direct"},
		{"scheduler in turn", map[string]string{key: "direct", "sluice.dev/scheduler": "rr"}, false, true,
			"rr: a direct Service needs a scheduler by hash"},
		{"scheduler by hash", map[string]string{key: "direct", "sluice.dev/scheduler": "sh"}, false, true, ""},
		{"check", map[string]string{key: "direct", "sluice.dev/health-check": "tcp"}, false, true, "has no effect"},
		{"limit", map[string]string{key: "direct", "sluice.dev/limit-connections": "5"}, false, true, "have no effect"},
		{"proxy protocol", map[string]string{key: "direct", "sluice.dev/proxy-protocol": "v2"}, false, true,
			"get no header"},
	} {
		in := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: tt.annotations}}
		in.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80}},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}
		if tt.cluster {
			in.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
		s, malformed := TrimService(in)
		if s.Direct != tt.want || len(malformed) > 0 || s.ProxyProtocol != (ProxyProtocol{}) {
			t.Errorf("%s: direct %v, malformed %v", tt.name, s.Direct, malformed)
		}
		switch {
		case tt.problem == "" && len(s.Problems) > 0, tt.problem != "" && len(s.Problems) != 1:
			t.Errorf("%s: problems %v", tt.name, s.Problems)
		case tt.problem != "" && (!strings.Contains(s.Problems[0].Message, tt.problem) ||
			s.Problems[0].Severity != Warning || len(s.Problems[0].Message) > 1000):
			t.Errorf("%s: %v, want %q", tt.name, s.Problems[0], tt.problem)
		}
	}
}
