package objects

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestProxyProtocol: which ports get headers by which annotation. A value that is not documented is
// a problem that names the allowed ones, and switches nothing on.
func TestProxyProtocol(t *testing.T) {
	const own = "sluice.dev/proxy-protocol"
	beta := func(name string) string { return "service.beta.kubernetes.io/" + name }
	all, none := []int{80, 443}, []int{}
	for _, tt := range []struct {
		key, value string
		want       []int
		problem    string
	}{
		{own, "v2", all, ""},
		{own, " v2\n", all, ""},
		{own, "none", none, ""},
		{own, "v2+udp", []int{80, 443, 53}, ""},
		{own, "v1", none, `"v1" is none of v2, v2+udp, none`},
		{own, "true", none, "v2+udp, none"},
		{own, "", none, "v2+udp, none"},
		{own, strings.Repeat("\x1b", 100_000), none, "v2+udp, none"},
		{"load-balancer.hetzner.cloud/uses-proxyprotocol", "true", all, ""},
		{"load-balancer.hetzner.cloud/uses-proxyprotocol", "false", none, ""},
		{"load-balancer.hetzner.cloud/uses-proxyprotocol", "yes", none, "true, false"},
		{"loadbalancer.openstack.org/proxy-protocol", "v2", all, ""},
		{"loadbalancer.openstack.org/proxy-protocol", "true", none, "v2, false"}, // that is version 1
		{beta("aws-load-balancer-proxy-protocol"), "*", all, ""},
		{beta("aws-load-balancer-proxy-protocol"), "80", none, "none of *"},
		{beta("do-loadbalancer-enable-proxy-protocol"), "true", all, ""},
		{beta("do-loadbalancer-enable-proxy-protocol"), "false", none, ""},
		{beta("linode-loadbalancer-default-proxy-protocol"), "v2", all, ""},
		{beta("linode-loadbalancer-default-proxy-protocol"), "none", none, ""},
		{beta("linode-loadbalancer-default-proxy-protocol"), "v1", none, "v2, none"},
		{beta("ovh-loadbalancer-proxy-protocol"), "v2", all, ""},
		{beta("ovh-loadbalancer-proxy-protocol"), "v2-ssl", none, "none of v2"},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "*", all, ""},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "true", all, ""},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "443", []int{443}, ""},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "80, 443", all, ""},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "53", none, "no such TCP port"},
		{beta("scw-loadbalancer-proxy-protocol-v2"), "80,", none, "a list of ports"},
		{beta("scw-loadbalancer-proxy-protocol-v2"), strings.Repeat("1,", 100_000) + "1", none, "a list of ports"},
		{beta("vultr-loadbalancer-proxy-protocol"), "true", all, ""},
		{beta("vultr-loadbalancer-proxy-protocol"), "v2", none, "true, false"},
		{"example.org/proxy-protocol", "v2", none, ""},
	} {
		if read := tt.key != "example.org/proxy-protocol"; ReadAnnotation(tt.key) != read {
			t.Errorf("%s is read: %v", tt.key, !read)
		}
		s := proxyService(t, map[string]string{tt.key: tt.value})
		if got := proxiedPorts(s); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %.20q: ports %v, want %v", tt.key, tt.value, got, tt.want)
		}
		if tt.key != own && len(tt.want) > 0 {
			tt.problem = "confirm with sluice.dev/proxy-protocol: v2"
		}
		if tt.problem == "" && len(s.Problems) != 0 || tt.problem != "" && (len(s.Problems) != 1 ||
			!strings.Contains(s.Problems[0].Message, tt.problem) || len(s.Problems[0].Message) > 400 ||
			strings.Contains(s.Problems[0].Message, "\x1b")) {
			t.Errorf("%s: %.20q: problems %.500v", tt.key, tt.value, s.Problems)
		}
	}
	aws := beta("aws-load-balancer-proxy-protocol")
	if s := proxyService(t, map[string]string{own: "none", aws: "*"}); len(proxiedPorts(s)) != 0 {
		t.Error("none does not override the annotation of a cloud")
	}
	if s := proxyService(t, map[string]string{own: "v2", aws: "*"}); len(proxiedPorts(s)) != 2 || len(s.Problems) != 0 {
		t.Errorf("confirmed: ports %v, problems %v", proxiedPorts(s), s.Problems)
	}
	const hetzner = "load-balancer.hetzner.cloud/uses-proxyprotocol"
	if s := proxyService(t, map[string]string{aws: "*", hetzner: "false"}); len(proxiedPorts(s)) != 2 {
		t.Error("an annotation that is off hides another one that is on")
	}
}

func proxyService(t *testing.T, annotations map[string]string) *Service {
	t.Helper()
	s, malformed := TrimService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "demo", Annotations: annotations},
		Spec: corev1.ServiceSpec{ClusterIP: "10.9.0.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80},
			{Name: "https", Port: 443}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}})
	if len(malformed) > 0 {
		t.Fatal(malformed)
	}
	return s
}

func proxiedPorts(s *Service) (ports []int) {
	for i := range s.Ports {
		if s.ProxyProtocol.Of(&s.Ports[i]) {
			ports = append(ports, int(s.Ports[i].Port))
		}
	}
	return ports
}
