package compare

import (
	"bytes"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/bed/cluster"
)

const (
	namespace   = "compare"
	gatewayNode = "gateway"
)

// object is a Service and its EndpointSlice. Number 0 receives the traffic; its name sorts among
// the others.
type object struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

// objects are the Services that both Sluice and kube-proxy get: one receives traffic, and each of
// the others has a load balancer's address and endpoint addresses that no host has.
func objects(services int, protocol corev1.Protocol) (list []object) {
	for i := range services {
		name, vip := fmt.Sprintf("s-%05d-other", i), cluster.NumberedVIP(i)
		at := func(k int) netip.Addr { return cluster.NumberedEndpoint(i*endpoints + k) }
		count := 2
		if i == 0 {
			count = endpoints
			name, vip, at = fmt.Sprintf("s-%05d-used", services/2), serviceVIP, endpoint
		}
		s := cluster.NewService(namespace, name, []corev1.ServicePort{
			{Name: "p", Port: servicePort, Protocol: protocol, TargetPort: intstr.FromInt32(endpointPort)},
		}, vip)
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		cluster.SetClusterIP(s, cluster.NumberedClusterIP(i))
		var eps []discoveryv1.Endpoint
		for k := range count {
			eps = append(eps, cluster.NewEndpoint("node-1", at(k)))
		}
		slice := cluster.NewSlice(s, "x", corev1.IPv4Protocol, eps...)
		slice.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		list = append(list, object{s, slice})
	}
	return list
}

// manifests returns the same objects as files of a directory, 500 objects in each.
func manifests(services int, protocol corev1.Protocol) (files map[string][]byte, err error) {
	const perFile = 500
	files = map[string][]byte{}
	list := objects(services, protocol)
	for n := 0; n*perFile < len(list); n++ {
		var b bytes.Buffer
		for _, o := range list[n*perFile : min((n+1)*perFile, len(list))] {
			for _, x := range [...]any{o.service, o.slice} {
				text, err := yaml.Marshal(x)
				if err != nil {
					return nil, err
				}
				b.WriteString("---\n")
				b.Write(text)
			}
		}
		files[fmt.Sprintf("services-%d.yaml", n)] = b.Bytes()
	}
	return files, nil
}
