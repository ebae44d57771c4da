//go:build root

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestKubernetesServerUnavailable: what the API server says is served; while it is away, and
// when it comes back with everything in another order, nothing changes.
func TestKubernetesServerUnavailable(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	var s *k8stest.Server
	l := newLab(t, labConfig{
		Config:  topo.Config{Queues: 2, Backends: 2},
		options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s}\n", kubeconfig),
		prepare: func(l *lab) {
			s = apiServer(t, l.Gateway, kubeconfig)
			s.Set(apiService("api", "10.96.0.40"), apiSlice("api", l.Backends[:2]...),
				apiService("rival", "10.96.0.41"),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode}})
		},
	})
	until := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("20 s later still not: %s\n%s", what, l.gate.Log())
			}
		}
	}
	until("an Event about the Service that cannot have the VIP", func() bool {
		events, _ := s.Events()
		return len(events) == 1 && events[0].Reason == "FrontendConflict" && events[0].Regarding.Name == "rival"
	})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(apiVIP, webPort),
		at(vip4, webPort)}, Flows: 100, Interval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	failing := func() (n int, generation uint64) {
		st, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range st.Sources {
			if strings.HasPrefix(source.Name, "kubernetes:") && strings.Contains(source.Error, "since") &&
				source.Synced {
				n++
			}
		}
		return n, st.Snapshot.Published
	}
	_, before := failing()
	s.Stop()
	until("three sources that fail", func() bool { n, _ := failing(); return n == 3 })
	lists := s.Lists("endpointslices")
	s.Shuffle = rand.New(rand.NewPCG(1, 2)).Shuffle
	s.Expire()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	until("a new list", func() bool { n, _ := failing(); return n == 0 && s.Lists("endpointslices") > lists })
	l.applied()
	if _, after := failing(); after != before {
		t.Errorf("table %d after the API server was away, %d before", after, before)
	}
	if n := flows.Broken(); n > 0 {
		t.Errorf("%d of 100 flows broke", n)
	}
	flows.Stop()

	// Backend 0 goes. What is answered a moment later comes from the other one alone.
	s.Set(apiSlice("api", l.Backends[1]))
	until("one backend", func() bool {
		all, err := l.gate.Client.Backends(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, b := range all {
			if b.Service == "api" && b.State == "ready" {
				n++
			}
		}
		return n == 1
	})
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(apiVIP, webPort)}, Requests: 50,
		Timeout: 2 * time.Second})
	if err != nil || len(r.Errors) > 0 || r.Shares[l.Backends[1].Name] != 50 {
		t.Errorf("50 requests: %v, %+v", err, r)
	}
}
