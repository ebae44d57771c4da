package controltest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Source is the Source of all objects of these clusters.
var Source = objects.Source{Kind: "bench"}

// Config returns the configuration of a gateway gw-1 with two addresses, one of which is its source
// address.
func Config() compiler.Config {
	addr := header.AddrFrom4
	return compiler.Config{
		NodeName:      "gw-1",
		NodeAddresses: []header.Addr{addr([4]byte{192, 0, 2, 10}), addr([4]byte{192, 0, 2, 20})},
		SNAT4:         []header.Addr{addr([4]byte{192, 0, 2, 20})},
		SNATPorts:     services.PortRange{First: 30002, Count: 1000},
		SelectKey:     [2]uint64{1, 2},
	}
}

// Service is the i-th Service of a cluster: a VIP and a node port.
func Service(i int) *corev1.Service {
	s := &corev1.Service{}
	s.Namespace, s.Name = "bench", fmt.Sprintf("service-%d", i)
	s.Spec.Type, s.Spec.IPFamilies = corev1.ServiceTypeLoadBalancer, []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, NodePort: int32(20_000 + i)}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.%d.%d.1", i>>8, i&255)}}
	return s
}

// Slice is the only slice of a Service with ten endpoints.
func Slice(i, version int) *discoveryv1.EndpointSlice { return Large.Slice(i, 0, version) }

// Node is a Node in a zone, with addresses of all kinds.
func Node(name, zone string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: zone}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.7"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::10"},
		{Type: corev1.NodeInternalIP, Address: "not an address"},
	}
	return n
}

// LocalService is a Service with a health check node port, and a slice of endpoints by
// node.
func LocalService(i, port int, nodes ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	s, e := Service(i), Slice(i, 0)
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, int32(port)
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81})
	more, number := "more", int32(8081)
	e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: &more, Port: &number})
	e.Endpoints = nil
	for n, name := range nodes {
		e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.9.%d.%d", i, n+1)},
			NodeName: &name})
	}
	return s, e
}

// Cluster is a cluster of Services with a VIP and a node port each, and their endpoints.
type Cluster struct{ Services, Endpoints int }

func (s Cluster) String() string { return fmt.Sprintf("%dx%d", s.Services, s.Endpoints) }

// Large is what one gateway must carry.
var Large = Cluster{10_000, 10}

// perSlice is how many endpoints the EndpointSlice controller puts into one slice
// (kube-controller-manager --max-endpoints-per-slice).
const perSlice = 100

// Tracker returns a Tracker that has read all objects.
func (s Cluster) Tracker() *tracker.Tracker {
	t := tracker.New()
	var b tracker.Batch
	for i := range s.Services {
		b.Upsert(Source, Service(i))
		for n := 0; n*perSlice < s.Endpoints; n++ {
			b.Upsert(Source, s.Slice(i, n, 0))
		}
	}
	t.Apply(&b)
	return t
}

// Slice is the n-th slice of a Service. It differs in one endpoint by version.
func (s Cluster) Slice(i, n, version int) *discoveryv1.EndpointSlice {
	e := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	e.Namespace, e.Name = "bench", fmt.Sprintf("service-%d-x", i)
	if n > 0 {
		e.Name += fmt.Sprint(n)
	}
	e.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)}
	name, port := "http", int32(8080)
	e.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
	for k := n * perSlice; k < min((n+1)*perSlice, s.Endpoints); k++ {
		pod := i*s.Endpoints + k
		if k == 3 {
			pod = 1<<23 + i*128 + version%97
		}
		e.Endpoints = append(e.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", pod>>16, pod>>8&255, pod&255)}})
	}
	return e
}
