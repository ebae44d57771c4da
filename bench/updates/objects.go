package updates

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/bed/cluster"
)

// gatewayNode is the name of the Node that the gateway runs on.
const gatewayNode = "gateway"

const (
	namespace   = "updates"
	servicePort = 80
	podPort     = 8080
)

// service is Service i, with a ClusterIP and a VIP: two frontends of each port.
func service(name string, i int, protocols ...corev1.Protocol) *corev1.Service {
	var ports []corev1.ServicePort
	for _, p := range protocols {
		ports = append(ports, corev1.ServicePort{
			Name: string([]byte{p[0] | 0x20}), Port: servicePort, Protocol: p, TargetPort: intstr.FromInt32(podPort),
		})
	}
	s := cluster.NewService(namespace, name, ports, cluster.NumberedVIP(i))
	cluster.SetClusterIP(s, cluster.NumberedClusterIP(i))
	return s
}

// Numbers of Services: probed ones first, then the steady one, then all others.
func (c *Config) steady() int { return c.Probed }
func (c *Config) firstOther() int {
	return c.Probed + 1
}

func (c *Config) probedService(i int) *corev1.Service {
	return service(fmt.Sprintf("probed-%d", i), i, corev1.ProtocolUDP)
}

func (c *Config) probedSlice(i, version int) *discoveryv1.EndpointSlice {
	return cluster.NewSlice(c.probedService(i), "x", corev1.IPv4Protocol,
		cluster.NewEndpoint("node-0", address(i, version)))
}

func (c *Config) steadyService() *corev1.Service {
	return service("steady", c.steady(), corev1.ProtocolTCP, corev1.ProtocolUDP)
}

func (c *Config) otherService(i int) *corev1.Service {
	return service(fmt.Sprintf("other-%d", i), i, corev1.ProtocolTCP)
}

// otherSlice has endpoints that move by one address with every version.
func (c *Config) otherSlice(i, version int) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for k := range c.Endpoints {
		endpoints = append(endpoints, cluster.NewEndpoint(fmt.Sprintf("node-%d", (i+k)%100),
			cluster.NumberedEndpoint(i*(c.Endpoints+1)+k+version%2)))
	}
	return cluster.NewSlice(c.otherService(i), "x", corev1.IPv4Protocol, endpoints...)
}

// population is all initial objects, without the gateway's Node.
func (c *Config) population(steadyAt ...netip.Addr) (list []cluster.Object) {
	for i := range c.Probed {
		list = append(list, c.probedService(i), c.probedSlice(i, 0))
	}
	var endpoints []discoveryv1.Endpoint
	for _, a := range steadyAt {
		endpoints = append(endpoints, cluster.NewEndpoint("node-1", a))
	}
	steady := c.steadyService()
	list = append(list, steady, cluster.NewSlice(steady, "x", corev1.IPv4Protocol, endpoints...))
	for i := c.firstOther(); i < c.Services; i++ {
		list = append(list, c.otherService(i), c.otherSlice(i, 0))
	}
	return list
}
