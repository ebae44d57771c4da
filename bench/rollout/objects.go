package rollout

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/bed/cluster"
)

const (
	gatewayNode = "gateway"
	namespace   = "rollout"
	webPort     = 80
	reached     = 20 // other Services that client1 connects to
)

// vip is the load balancer's address of the Service that is updated (0), and of the Services to
// which client1 connects.
func vip(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)}) }

// service is a Service with one port.
func service(name string, vips ...netip.Addr) *corev1.Service {
	return cluster.NewService(namespace, name, []corev1.ServicePort{
		{Name: "http", Port: webPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(podPort)},
	}, vips...)
}

var web = service("web", vip(0))

// webSlice is the one slice of the Service that is updated, with the current pods.
func webSlice(pods []*pod) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for _, p := range pods {
		if p.phase != dead {
			endpoints = append(endpoints, p.endpoint())
		}
	}
	return cluster.NewSlice(web, "pods", corev1.IPv4Protocol, endpoints...)
}

func nodeOf(host int) string { return fmt.Sprintf("node-%d", host) }

// endpoint is a pod in the form of the EndpointSlice controller (KEP-1672).
func (p *pod) endpoint() discoveryv1.Endpoint {
	e := cluster.NewEndpoint(nodeOf(p.host), p.addr)
	isReady, serving, ending := p.phase == ready, p.phase != starting, p.phase == terminating
	e.Conditions = discoveryv1.EndpointConditions{Ready: &isReady, Serving: &serving, Terminating: &ending}
	return e
}

// others makes the Services that do not change and their slices. The first few have pods, which it
// returns.
func others(c *Config, addresses *podAddresses) (objects []cluster.Object, pods []*pod) {
	for i := range c.Services - 1 {
		var s *corev1.Service
		var endpoints []discoveryv1.Endpoint
		name := fmt.Sprintf("other-%d", i)
		if i < reached {
			s = service(name, vip(1+i))
			for range c.Pods {
				p := addresses.next()
				p.phase = ready
				pods = append(pods, p)
				endpoints = append(endpoints, p.endpoint())
			}
		} else {
			s = service(name)
			for k := range c.Pods {
				endpoints = append(endpoints, cluster.NewEndpoint(nodeOf(k%podHosts),
					cluster.NumberedEndpoint(i*c.Pods+k)))
			}
		}
		objects = append(objects, s, cluster.NewSlice(s, "pods", corev1.IPv4Protocol, endpoints...))
	}
	return objects, pods
}
