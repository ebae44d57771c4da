package objects

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestForwarding checks which Services have direct return or are routed, and the problems of other
// Services.
func TestForwarding(t *testing.T) {
	const key = "sluice.dev/forwarding"
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		cluster     bool
		want        string
		problem     string
	}{
		{"none", nil, false, "", ""},
		{"nat", map[string]string{key: "nat"}, true, "", ""},
		{"direct", map[string]string{key: " direct\n"}, false, "direct", ""},
		{"policy Cluster", map[string]string{key: "direct"}, true, "", "needs spec.externalTrafficPolicy: Local"},
		{"misspelt", map[string]string{key: "Direkt"}, false, "", "did you mean direct?"},
		{"empty", map[string]string{key: ""}, false, "", `"" is none of nat, direct`},
		{"long", map[string]string{key: strings.Repeat("\x1b", 100_000)}, false, "", "is none of nat, direct"},
		{"scheduler in turn", map[string]string{key: "direct", "sluice.dev/scheduler": "rr"}, false, "direct",
			"rr: a direct Service needs a scheduler by hash"},
		{"scheduler by hash", map[string]string{key: "direct", "sluice.dev/scheduler": "sh"}, false, "direct", ""},
		{"check", map[string]string{key: "direct", "sluice.dev/health-check": "tcp"}, false, "direct", "has no effect"},
		{"limit", map[string]string{key: "direct", "sluice.dev/limit-connections": "5"}, false, "direct",
			"have no effect"},
		{"proxy protocol", map[string]string{key: "direct", "sluice.dev/proxy-protocol": "v2"}, false, "direct",
			"get no header"},
		{"routed", map[string]string{key: "routed", "sluice.dev/scheduler": "rr", "sluice.dev/health-check": "tcp",
			"sluice.dev/limit-connections": "5"}, true, "routed", ""},
		{"routed, policy Local", map[string]string{key: "routed"}, false, "",
			"no effect with spec.externalTrafficPolicy"},
		{"routed, proxy protocol", map[string]string{key: "routed", "sluice.dev/proxy-protocol": "v2"}, true, "routed",
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
		got := map[[2]bool]string{{true, false}: "direct", {false, true}: "routed"}[[2]bool{s.Direct, s.Routed}]
		if got != tt.want || len(malformed) > 0 || s.ProxyProtocol != (ProxyProtocol{}) {
			t.Errorf("%s: %q, want %q, malformed %v", tt.name, got, tt.want, malformed)
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
