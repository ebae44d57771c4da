//go:build root

package e2e

import (
	"fmt"
	"net"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/test/bed/topo"
)

const apiVIP = "203.0.113.40"

// apiServer is an API server that the gateway reaches on its own loopback by a
// kubeconfig.
func apiServer(t *testing.T, gateway *topo.Host, kubeconfig string) *k8stest.Server {
	t.Helper()
	return apiServerAt(t, gateway.Listen, kubeconfig)
}

// apiServerAt is an API server behind a listener of its own.
func apiServerAt(
	t *testing.T, listen func(network, address string) (net.Listener, error), kubeconfig string,
) *k8stest.Server {
	t.Helper()
	s := k8stest.New()
	s.Listen = listen
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: "%s"}}], users: [{name: u, user: {}}]}`, s.URL())
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func apiService(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: clusterIP,
			ClusterIPs: []string{clusterIP},
			Ports:      []corev1.ServicePort{{Name: "p", Port: webPort, Protocol: corev1.ProtocolTCP}}},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: apiVIP}}},
		},
	}
}

func apiSlice(service string, hosts ...*topo.Host) *discoveryv1.EndpointSlice {
	name, port, tcp := "p", int32(backendPort), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-x",
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port,
			Protocol: &tcp}},
	}
	for _, h := range hosts {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{h.Addr4().String()}})
	}
	return s
}
