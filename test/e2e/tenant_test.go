//go:build root

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/topo"
)

// The ports that a gateway's own connections have in TestTenantTakesNothingOfTheNode. A Service
// names them all.
const localFirst, localLast = 40000, 40063

// tenantAPI is an API server on another host than the gateway's: what it sends comes in at a NIC.
type tenantAPI interface {
	start(t *testing.T, l *lab, at *topo.Host, kubeconfig string)
	put(t *testing.T, objects ...cluster.Object)
	remove(t *testing.T, objects ...cluster.Object)
}

// TestTenantTakesNothingOfTheNode: a tenant writes Services whose external IPs are the gateway's
// addresses, with every port that the gateway's own connections can have, BGP's, and those that the
// gateway itself listens at; and a controller writes the same addresses into a Service's status.
// The gateway's connection to its API server, its listeners and the answers of its resolver stay
// the node's, while the Services are there and after they are gone.
func TestTenantTakesNothingOfTheNode(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T) { tenant(t, &memoryTenant{}) },
		func(t *testing.T) { tenant(t, &realTenant{}) })
}

func tenant(t *testing.T, api tenantAPI) {
	l := tenantLab(t, api, "")
	g := l.Gateway
	own := l.serveOwn(t)
	own.check(t, "before")

	attack := takeNode([]string{g.Addr4().String(), g.Interfaces[1].Addr4.Addr().String()}, l.Backends[0])
	api.put(t, attack...)
	l.hear(t, api, "during", 51)
	own.check(t, "with the tenant's Services")
	if s := l.outageState(); s.failing > 0 {
		t.Errorf("%d sources fail", s.failing)
	}
	api.remove(t, attack...)
	l.hear(t, api, "after", 52)
	own.check(t, "after them")
}

// tenantLab is a gateway that has an API server on another host, and few ports for connections of
// its own.
func tenantLab(t *testing.T, api tenantAPI, options string) *lab {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	return newLab(t, labConfig{
		Config: topo.Config{Queues: 2, Backends: 2}, small: true, lasts: 10 * time.Minute,
		options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s}\nmetrics: {address: ':9470'}\n%s", kubeconfig,
			options),
		prepare: func(l *lab) {
			err := l.Gateway.SetSysctl("net/ipv4/ip_local_port_range", fmt.Sprintf("%d %d", localFirst, localLast))
			if err != nil {
				t.Fatal(err)
			}
			api.start(t, l, l.Backends[1], kubeconfig)
			api.put(t, cluster.NewNode(gatewayNode, "", l.Gateway.Addr4()))
		},
	})
}

// ownTraffic is the node's own: listeners, and a resolver that it asks.
type ownTraffic struct {
	l        *lab
	resolver netip.AddrPort
}

func (l *lab) serveOwn(t *testing.T) *ownTraffic {
	t.Helper()
	bgp, err := l.Gateway.Listen("tcp", netip.AddrPortFrom(l.Gateway.Addr4(), 179).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bgp.Close() })
	go greet(bgp)
	return &ownTraffic{l, answers(t, l.Clients[0], netip.AddrPortFrom(l.Clients[0].Addr4(), 53), "")}
}

// check asks each of them.
func (o *ownTraffic) check(t *testing.T, when string) {
	t.Helper()
	g, client := o.l.Gateway, o.l.Clients[0]
	if got := firstLine(t, client, netip.AddrPortFrom(g.Addr4(), 179), ""); got != "the node" {
		t.Errorf("%s: port 179 is answered by %q", when, got)
	}
	for at, want := range map[string]string{":9470/metrics": "sluice_", ":10256/livez": "ealth"} {
		if got := page(t, client, "http://"+g.Addr4().String()+at); !strings.Contains(got, want) {
			t.Errorf("%s: %s is answered by %.60q", when, at, got)
		}
	}
	if err := resolves(g, o.resolver); err != nil {
		t.Errorf("%s: the resolver's answer: %v", when, err)
	}
}

// hear writes a Service, the youngest, at an address of its own, and expects it to be served. So
// all that was written before has been heard, too.
func (l *lab) hear(t *testing.T, api tenantAPI, name string, address byte) {
	t.Helper()
	s := apiService(name, "")
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Status = "", nil, corev1.ServiceStatus{}
	s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, []string{fmt.Sprint("203.0.113.", address)}
	api.put(t, s, apiSlice(name, l.Backends[0]))
	l.eventually(30*time.Second, "the API server says that there is Service "+name, func() bool {
		all, err := l.gate.Client.Services(l.ctx)
		return err == nil && slices.ContainsFunc(all, func(v status.ServiceView) bool { return v.Name == name })
	})
	l.applied()
	if firstLine(t, l.Clients[0], at(s.Spec.ExternalIPs[0], webPort), "GET / HTTP/1.0\r\n\r\n") == "" {
		t.Errorf("Service %s is not served", name)
	}
}

// takeNode is what a tenant, and a controller that trusts him, can write about addresses.
func takeNode(addrs []string, backend *topo.Host) (list []cluster.Object) {
	var tcp, udp []corev1.ServicePort
	for port := int32(localFirst); port <= localLast; port++ {
		tcp = append(tcp, corev1.ServicePort{Name: fmt.Sprint("t", port), Port: port, Protocol: corev1.ProtocolTCP})
		udp = append(udp, corev1.ServicePort{Name: fmt.Sprint("u", port), Port: port, Protocol: corev1.ProtocolUDP})
	}
	var listeners []corev1.ServicePort
	for _, port := range []int32{179, 9470, 10256} {
		listeners = append(listeners, corev1.ServicePort{Name: fmt.Sprint("t", port), Port: port,
			Protocol: corev1.ProtocolTCP})
	}
	for name, ports := range map[string][]corev1.ServicePort{"tcp": tcp, "udp": udp, "listeners": listeners} {
		for i := range ports {
			ports[i].TargetPort = intstr.FromInt32(backendPort)
		}
		external := apiService("external-"+name, "")
		external.Spec.Type, external.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, addrs
		external.Status = corev1.ServiceStatus{}
		status := apiService("status-"+name, "")
		status.Status.LoadBalancer.Ingress = nil
		for _, a := range addrs {
			status.Status.LoadBalancer.Ingress = append(status.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: a})
		}
		for _, s := range []*corev1.Service{external, status} {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.Ports = "", nil, ports
			slice, target := apiSlice(s.Name, backend), int32(backendPort)
			slice.Ports = nil
			for i := range ports {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &ports[i].Name,
					Protocol: &ports[i].Protocol, Port: &target})
			}
			list = append(list, s, slice)
		}
	}
	return list
}

// answers starts a UDP server that sends back answer, or what it gets if that is empty.
func answers(t *testing.T, h *topo.Host, at netip.AddrPort, answer string) netip.AddrPort {
	t.Helper()
	conn, err := h.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if answer != "" {
				n = copy(b, answer)
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
	return at
}

// resolves asks a server from a socket that the kernel chooses the port of.
func resolves(from *topo.Host, server netip.AddrPort) error {
	var conn net.Conn
	err := from.Run(func() (err error) {
		conn, err = net.Dial("udp", server.String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := conn.Write([]byte("where?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 64))
	return err
}

// page is what a host gets for a URL; the error's text if it gets nothing.
func page(t *testing.T, from *topo.Host, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, body, err := from.Get(ctx, url)
	if err != nil {
		return err.Error()
	}
	return body
}

type memoryTenant struct {
	server    *k8stest.Server
	allocated int
}

func (m *memoryTenant) start(t *testing.T, _ *lab, at *topo.Host, kubeconfig string) {
	m.server = apiServerAt(t, func(network, address string) (net.Listener, error) {
		return at.Listen(network, strings.Replace(address, "127.0.0.1", at.Addr4().String(), 1))
	}, kubeconfig)
}

func (m *memoryTenant) put(_ *testing.T, objects ...cluster.Object) {
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok && s.Spec.ClusterIP == "" { // as an API server does
			m.allocated++
			s.Spec.ClusterIP = fmt.Sprintf("10.96.7.%d", m.allocated)
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		m.server.Set(o.(runtime.Object))
	}
}

func (m *memoryTenant) remove(_ *testing.T, objects ...cluster.Object) {
	for _, o := range objects {
		m.server.Delete(o.(runtime.Object))
	}
}

type realTenant struct{ cluster *cluster.Cluster }

func (r *realTenant) start(t *testing.T, l *lab, at *topo.Host, kubeconfig string) {
	r.cluster = clustertest.Start(l.ctx, t, cluster.Config{Host: at, Address: at.Addr4()})
	if _, err := r.cluster.Gateway(l.ctx, l.Gateway); err != nil { // what the account may do
		t.Fatal(err)
	}
	user, err := r.cluster.ServiceAccount(l.ctx, "sluice", "gateway")
	if err != nil {
		t.Fatal(err)
	}
	written, err := r.cluster.Kubeconfig(user,
		"https://"+netip.AddrPortFrom(at.Addr4(), r.cluster.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(written, kubeconfig); err != nil {
		t.Fatal(err)
	}
}

func (r *realTenant) put(t *testing.T, objects ...cluster.Object) {
	t.Helper()
	if err := r.cluster.Put(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

func (r *realTenant) remove(t *testing.T, objects ...cluster.Object) {
	t.Helper()
	if err := r.cluster.Delete(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}
