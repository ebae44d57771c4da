package compiler_test

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

func of(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

// web is a Service with the VIP 203.0.113.10, and slice its one EndpointSlice.
func web() *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web",
		CreationTimestamp: metav1.Unix(1000, 0)}}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
	return s
}

func slice(addresses ...string) *discoveryv1.EndpointSlice {
	port, protocol := int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// changed is what a tracker would hand out for objects that were read.
func changed(service *corev1.Service, endpoints *discoveryv1.EndpointSlice) *objects.Changes {
	var c objects.Changes
	if service != nil {
		s, _ := objects.TrimService(service)
		c.Add(s.ID, s)
	}
	if endpoints != nil {
		s, _ := objects.TrimSlice(endpoints)
		c.Add(s.ID, s)
	}
	return &c
}

// Objects become a snapshot for the workers, and what the kernel program must send to them. A later
// change is compiled alone; the snapshot from before stays as it was.
func ExampleCompiler_Compile() {
	c := compiler.New(compiler.Config{
		NodeName: "gw-1", SNAT4: []header.Addr{of("10.0.1.2")}, SNATPorts: services.PortRange{First: 20000,
			Count: 1000},
	})
	before, problems, kernel := c.Compile(changed(web(), slice("10.0.1.12", "10.0.1.13")))
	fmt.Println("problems:", len(problems))
	for _, f := range kernel.Open.Frontends {
		fmt.Println("the kernel program opens", netip.AddrFrom16(f.Addr).Unmap(), f.Port)
	}

	after, _, _ := c.Compile(changed(nil, slice("10.0.1.12")))
	syn := header.Tuple{
		Src: of("198.51.100.7"), SrcPort: 40000, Dst: of("203.0.113.10"), DstPort: 80, Proto: header.ProtoTCP,
	}
	for _, s := range []*services.Snapshot{before, after} {
		d := s.Decide(&syn)
		fmt.Printf("%s: %d backends\n", d.Outcome, len(d.Rule.Set.Backends))
	}
	choice := after.Choose(after.Decide(&syn).Frontend, after.Decide(&syn).Rule.Set, &services.Draw{Tuple: &syn})
	b := after.Backend(choice.Backend)
	fmt.Println("chosen:", netip.AddrPortFrom(netip.AddrFrom16(b.Addr).Unmap(), b.Port))
	// Output:
	// problems: 0
	// the kernel program opens 203.0.113.10 80
	// admit: 2 backends
	// admit: 1 backends
	// chosen: 10.0.1.12:8080
}

// An object that cannot be served as it is written is a problem of its own, with the field and what
// to do. It concerns no other object.
func ExampleCompiler_Problems() {
	c := compiler.New(compiler.Config{
		NodeName: "gw-1", SNAT4: []header.Addr{of("10.0.1.2")}, SNATPorts: services.PortRange{First: 20000,
			Count: 1000},
	})
	other := web()
	other.Name = "web-2" // claims the VIP and port that Service web has
	other.CreationTimestamp = metav1.Unix(2000, 0)
	all := changed(web(), slice("10.0.1.12"))
	s, _ := objects.TrimService(other)
	all.Add(s.ID, s)
	c.Compile(all)
	for _, p := range c.Problems() {
		fmt.Println(p.Severity, p.Object, p.Field)
		fmt.Println(p.Message)
	}
	// Output:
	// refused Service default/web-2 spec.ports[0]
	// LoadBalancer 203.0.113.10:80/TCP belongs to Service default/web
}
