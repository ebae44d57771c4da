package launch

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Service describes a Service of both families and its endpoints, in the terms
// that tests vary.
type Service struct {
	Name        string
	Namespace   string // default if empty
	Port        int32
	NodePort    int32
	UDP, SCTP   bool // TCP otherwise
	VIPs        []string
	ExternalIPs []string
	Local       bool  // external traffic policy
	HealthCheck int32 // node port; needs Local
	Endpoints   []Endpoint
	Annotations map[string]string
}

// Endpoint is one endpoint of one family.
type Endpoint struct {
	Addr                 netip.Addr
	Port                 int32
	Node                 string
	NotReady             bool
	Terminating, Serving bool
}

// Apply writes services to the gateway's manifests, a file each, by rename.
func (g *Gateway) Apply(services ...Service) error {
	for i := range services {
		s := &services[i]
		var b bytes.Buffer
		for _, o := range s.objects() {
			text, err := yaml.Marshal(o)
			if err != nil {
				return err
			}
			b.WriteString("---\n")
			b.Write(text)
		}
		if err := g.Write(s.Name+".yaml", b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Write puts a file into the gateway's manifests, by rename.
func (g *Gateway) Write(name string, text []byte) error {
	return replace(filepath.Join(g.Manifests(), name), text)
}

// Remove takes a service's file away.
func (g *Gateway) Remove(name string) error {
	return os.Remove(filepath.Join(g.Manifests(), name+".yaml"))
}

func (s *Service) objects() []any {
	protocol := corev1.ProtocolTCP
	switch {
	case s.UDP:
		protocol = corev1.ProtocolUDP
	case s.SCTP:
		protocol = corev1.ProtocolSCTP
	}
	svc := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace(), Name: s.Name, Annotations: s.Annotations},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeLoadBalancer,
			ClusterIP:  "10.96.0.10",
			ClusterIPs: []string{"10.96.0.10", "fd00:96::10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: "p", Port: s.Port, NodePort: s.NodePort, Protocol: protocol}},

			ExternalIPs: s.ExternalIPs,
		},
	}
	if s.Local {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		svc.Spec.HealthCheckNodePort = s.HealthCheck
	}
	for _, ip := range s.VIPs {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	objects := []any{svc}
	slices := map[string]*discoveryv1.EndpointSlice{}
	for _, e := range s.Endpoints {
		family := discoveryv1.AddressTypeIPv4
		if e.Addr.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		key := fmt.Sprintf("%s-%s-%d", s.Name, family, e.Port)
		slice := slices[key]
		if slice == nil {
			slice = s.slice(key, family, protocol, e.Port)
			slices[key] = slice
			objects = append(objects, slice)
		}
		slice.Endpoints = append(slice.Endpoints, e.object())
	}
	return objects
}

func (s *Service) namespace() string { return cmp.Or(s.Namespace, metav1.NamespaceDefault) }

func (s *Service) slice(
	key string, family discoveryv1.AddressType, protocol corev1.Protocol, port int32,
) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace(), Name: lower(key),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("p"), Port: &port, Protocol: &protocol}},
	}
}

func (e *Endpoint) object() discoveryv1.Endpoint {
	o := discoveryv1.Endpoint{Addresses: []string{e.Addr.String()}}
	ready := !e.NotReady && !e.Terminating
	serving := ready || e.Serving
	o.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &e.Terminating}
	if e.Node != "" {
		o.NodeName = &e.Node
	}
	return o
}

func lower(s string) string { return string(bytes.ToLower([]byte(s))) }

func ptr[T any](v T) *T { return &v }
