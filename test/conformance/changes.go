package conformance

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Changes that cases make to the Service that Case.service makes.

func local(f *front) {
	f.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	f.Spec.HealthCheckNodePort = int32(f.nodePort(3))
}

func clusterPolicy(f *front) {
	f.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	f.Spec.HealthCheckNodePort = 0
}

func internalLocal(f *front) {
	p := corev1.ServiceInternalTrafficPolicyLocal
	f.Spec.InternalTrafficPolicy = &p
}

func external(f *front) { f.Spec.ExternalIPs = []string{f.externalOf(false), f.externalOf(true)} }

func ranges(prefixes ...string) func(*front) {
	return func(f *front) { f.Spec.LoadBalancerSourceRanges = prefixes }
}

func affinity(seconds int32) func(*front) {
	return func(f *front) {
		f.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		f.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
		}
	}
}

// clusterIPType makes it a Service without node ports and load balancer.
func clusterIPType(f *front) {
	f.Spec.Type = corev1.ServiceTypeClusterIP
	f.Status = corev1.ServiceStatus{}
	for i := range f.Spec.Ports {
		f.Spec.Ports[i].NodePort = 0
	}
}

func nodePortType(f *front) {
	f.Spec.Type = corev1.ServiceTypeNodePort
	f.Status = corev1.ServiceStatus{}
}

// headless makes it a Service without a ClusterIP.
func headless(f *front) {
	clusterIPType(f)
	f.Spec.ClusterIP, f.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

func onlyIPv4(f *front) {
	single := corev1.IPFamilyPolicySingleStack
	f.Spec.IPFamilyPolicy, f.Spec.IPFamilies = &single, f.Spec.IPFamilies[:1]
	f.Spec.ClusterIPs = f.Spec.ClusterIPs[:1]
}

func label(key, value string) func(*front) {
	return func(f *front) { metav1.SetMetaDataLabel(&f.ObjectMeta, key, value) }
}

func annotation(key, value string) func(*front) {
	return func(f *front) { metav1.SetMetaDataAnnotation(&f.ObjectMeta, key, value) }
}

// vip replaces the load balancer's addresses.
func vip(addresses ...string) func(*front) {
	return func(f *front) {
		f.Status.LoadBalancer.Ingress = nil
		for _, a := range addresses {
			f.Status.LoadBalancer.Ingress = append(f.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

func ipMode(mode corev1.LoadBalancerIPMode) func(*front) {
	return func(f *front) {
		for i := range f.Status.LoadBalancer.Ingress {
			f.Status.LoadBalancer.Ingress[i].IPMode = &mode
		}
	}
}

func withSCTP(f *front) { f.Spec.Ports = append(f.Spec.Ports, f.port("s", corev1.ProtocolSCTP, 80, 0)) }

// anotherPort adds TCP port 81.
func anotherPort(f *front) {
	f.Spec.Ports = append(f.Spec.Ports, f.port("t2", corev1.ProtocolTCP, 81, 1))
}

// servicePort replaces the number of the TCP and UDP port.
func servicePort(number int32) func(*front) {
	return func(f *front) { f.Spec.Ports[0].Port, f.Spec.Ports[1].Port = number, number }
}

// otherNodePort replaces the node port of the TCP and UDP port by another of the Service's own.
func otherNodePort(f *front) {
	f.Spec.Ports[0].NodePort, f.Spec.Ports[1].NodePort = int32(f.nodePort(2)), int32(f.nodePort(2))
}

// edit writes a slice of each family after a change of them.
func (f *front) edit(suffix string, change func(*discoveryv1.EndpointSlice), endpoints ...string) *front {
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		s := f.sliceOf(suffix, family, endpoints...)
		change(s)
		f.c.put(s)
	}
	return f
}

func targetPort(number int32) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Ports = slices.Clone(s.Ports)
		for i := range s.Ports {
			s.Ports[i].Port = &number
		}
	}
}

func portNames(suffix string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		for i := range s.Ports {
			name := *s.Ports[i].Name + suffix
			s.Ports[i].Name = &name
		}
	}
}

func sliceLabel(key, value string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Labels[key] = value }
}

func withoutService(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }
