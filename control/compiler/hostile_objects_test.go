package compiler_test

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// unprintable are texts that a terminal, a log or a metrics parser must not get as they are: an
// escape sequence, a carriage return, lines, U+009B (CSI), U+202E (right to left), NUL, bytes that
// are no UTF-8; and a megabyte.
var unprintable = map[string]string{
	"escape": "\x1b]0;owned\x07\x1b[2J", "lines": "a\r\nproblem: none\nb", "C1": "a\u009b31mb", "bidi": "a\u202egnp.b",
	"line separator": "a\u2028b", "NUL": "a\x00b", "not UTF-8": "a\xff\xfe\xc0\x80b", "zero width": "a\u200bb",
	"megabyte": strings.Repeat("a", 1<<20), "megabyte of control": strings.Repeat("\x1b", 1<<20),
}

// hostileAnnotations: a value that cannot be used is a warning, and the Service is served without.
func hostileAnnotations() (rows []hostile) {
	values := map[string]string{
		"huge": strings.Repeat("9", 400), "negative": "-1", "NaN": "NaN", "infinite": "+Inf", "float": "1e3",
		"hex": "0x10", "max": fmt.Sprint(uint64(math.MaxUint64)),
		"weights only commas": strings.Repeat(",", 1<<20) + "x", "entries": strings.Repeat("x,", 1<<19),
		"entries with zero": "10.0.66.1=0,10.0.66.2=0,x",
		"wrong":             "10.0.66.1=65536,10.0.66.2=-1,zone:=1,node:=,=,1.2.3.4/99=1,::ffff:10.0.0.1=1",
	}
	for name, text := range unprintable {
		values[name] = text
	}
	for _, key := range []string{"sluice.dev/weights", "sluice.dev/scheduler", "sluice.dev/limit-connections",
		"sluice.dev/limit-new-connections-per-source"} {
		for name, text := range values {
			rows = append(rows, hostile{name: key + " " + name, want: []string{"metadata.annotations[" + key + "]"},
				frontends: 1, backends: 2,
				objects: []runtime.Object{tenantSlice(nil), tenantService(func(s *corev1.Service) {
					s.Annotations = map[string]string{key: text}
				})}})
		}
	}
	rows = append(rows, hostile{name: "1,000 entries are read", want: []string{"981 more problems"}, frontends: 1,
		backends: 2, objects: []runtime.Object{tenantSlice(nil), tenantService(func(s *corev1.Service) {
			s.Annotations = map[string]string{"sluice.dev/weights": values["entries"]}
		})}})
	for name, text := range values {
		rows = append(rows, hostile{name: "slice's weights " + name, want: []string{"annotations[sluice.dev/weights]"},
			frontends: 1, backends: 2,
			objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{"sluice.dev/weights": text}
			})}})
		rows = append(rows, hostile{name: "not read " + name, frontends: 1, backends: 2,
			objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				s.Annotations = map[string]string{"example.org/other": text, text: text}
			}), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: text, text: text}
			})}})
	}
	return rows
}

// hostileNames: texts in all fields of names and messages.
func hostileNames() (rows []hostile) {
	add := func(field, name string, frontends, backends int, want string, o ...runtime.Object) {
		row := hostile{name: field + " " + name, frontends: frontends, backends: backends, objects: o}
		if want != "" {
			row.want = []string{want}
		}
		rows = append(rows, row)
	}
	for name, text := range unprintable {
		service := func(change func(*corev1.Service)) *corev1.Service { return tenantService(change) }
		slice := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice { return tenantSlice(change) }
		add("Service", name, 0, 0, "is not a DNS name", service(func(s *corev1.Service) { s.Name = text }))
		add("namespace", name, 0, 0, "is not a DNS label", service(func(s *corev1.Service) { s.Namespace = text }))
		add("port name", name, 0, 0, "is not a DNS label", slice(nil),
			service(func(s *corev1.Service) { s.Spec.Ports[0].Name = text }))
		add("protocol", name, 0, 0, "is none of TCP", slice(nil),
			service(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.Protocol(text) }))
		add("type", name, 0, 0, "is not a Service type", slice(nil),
			service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceType(text) }))
		add("affinity", name, 0, 0, "spec.sessionAffinity", slice(nil),
			service(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinity(text) }))
		add("policy", name, 0, 0, "spec.externalTrafficPolicy", slice(nil), service(func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(text)
		}))
		internal := corev1.ServiceInternalTrafficPolicy(text)
		add("internal policy", name, 0, 0, "spec.internalTrafficPolicy", slice(nil),
			service(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &internal }))
		add("family", name, 0, 0, "spec.ipFamilies", slice(nil), service(func(s *corev1.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, []corev1.IPFamily{corev1.IPFamily(text)}
		}))
		add("source range", name, 1, 2, "it is ignored", slice(nil), service(func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{text, "198.51.100.0/24", "2001:db8::/32"}
		}))
		add("status host name", name, 1, 2, "", slice(nil), service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: text}}
		}))
		add("slice", name, 0, 0, "is not a DNS name", slice(func(s *discoveryv1.EndpointSlice) { s.Name = text }))
		add("slice's Service", name, 0, 0, "", slice(func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = text
		}))
		add("slice's port name", name, 1, 0, "no EndpointSlice has", service(nil),
			slice(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = &text }))
		protocol := corev1.Protocol(text)
		add("slice's protocol", name, 1, 0, "is none of TCP", service(nil),
			slice(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = &protocol }))
		add("address type", name, 1, 0, "addressType", service(nil),
			slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressType(text) }))
		add("endpoint", name, 1, 2, "", service(nil), slice(func(s *discoveryv1.EndpointSlice) {
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				e.Hostname, e.NodeName, e.Zone = &text, &text, &text
				e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: text}},
					ForNodes: []discoveryv1.ForNode{{Name: text}}}
				e.TargetRef = &corev1.ObjectReference{Kind: text, Namespace: text, Name: text}
			}
		}))
	}
	return rows
}

func hostilePorts() (rows []hostile) {
	for _, n := range []int32{0, -1, 65_536, 131_152, math.MaxInt32, math.MinInt32} {
		rows = append(rows, hostile{name: fmt.Sprint("port ", n), want: []string{"is not between 1 and 65535"},
			objects: []runtime.Object{tenantSlice(nil),
				tenantService(func(s *corev1.Service) { s.Spec.Ports[0].Port = n })}})
		if n == 0 {
			continue // no node port; a slice's port without a number
		}
		rows = append(rows, hostile{name: fmt.Sprint("node port ", n), want: []string{"is not between 0 and 65535"},
			objects: []runtime.Object{tenantSlice(nil),
				tenantService(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = n })}},
			hostile{name: fmt.Sprint("slice's port ", n), want: []string{"is not between 0 and 65535"}, frontends: 1,
				objects: []runtime.Object{tenantService(nil),
					tenantSlice(func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Port = n })}})
	}
	rows = append(rows,
		hostile{name: "slice's port 0", frontends: 1, objects: []runtime.Object{tenantService(nil),
			tenantSlice(func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Port = 0 })}},
		hostile{name: "the same port twice", want: []string{"is another port's"},
			objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 80}}
			})}},
		hostile{name: "the same name twice", want: []string{"is the name of another port"},
			objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "a", Port: 81}}
			})}},
		hostile{name: "node port of a good Service", want: []string{"belongs to Service good/plain"}, frontends: 1,
			objects: []runtime.Object{tenantService(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 32_100 })}},
		hostile{name: "no ports", want: []string{"is empty"},
			objects: []runtime.Object{tenantService(func(s *corev1.Service) { s.Spec.Ports = nil })}},
		hostile{name: "thousands", want: []string{"this port and the 1807 behind it are refused"}, frontends: 8192,
			backends: 2, objects: []runtime.Object{tenantSlice(nil), tenantService(func(s *corev1.Service) {
				s.Spec.Ports = s.Spec.Ports[:1]
				for i := range 9999 {
					s.Spec.Ports = append(s.Spec.Ports,
						corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1000 + i)})
				}
			})}},
		hostile{name: "the same a thousand times in a slice", want: []string{"is the name of another port"},
			frontends: 1, objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				for i := range 1000 {
					p := s.Ports[0]
					port := int32(i + 1)
					p.Port = &port
					s.Ports = append(s.Ports, p)
				}
			})}},
	)
	return rows
}

func hostileSlices() []hostile {
	return []hostile{
		{name: "1,000 endpoints of one address", frontends: 1, backends: 1, objects: []runtime.Object{
			tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = slices.Repeat(s.Endpoints[:1], 1000)
			})}},
		{name: "1,001 endpoints", want: []string{"1001 are more than the API's 1000"}, frontends: 1,
			objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				for len(s.Endpoints) < 1001 {
					s.Endpoints = append(s.Endpoints, s.Endpoints[0])
				}
			})}},
		{name: "1,000 endpoints of no address", want: []string{"more problems"}, frontends: 1,
			objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = make([]discoveryv1.Endpoint, 1000)
			})}},
		{name: "IPv6 addresses as IPv4", want: []string{"is of the other address family"}, frontends: 1, backends: 1,
			objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Addresses[0] = "2001:db8:66::1"
			})}},
		{name: "IPv4 addresses as IPv6", want: []string{"is of the other address family"}, frontends: 1,
			objects: []runtime.Object{tenantService(nil), tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
			})}},
		{name: "IPv6 slice of an IPv4 Service", frontends: 1, objects: []runtime.Object{tenantService(nil),
			tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints[0].Addresses[0], s.Endpoints[1].Addresses[0] = "2001:db8:66::1", "2001:db8:66::2"
			})}},
		{name: "FQDN", frontends: 1, objects: []runtime.Object{tenantService(nil),
			tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.AddressType, s.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeFQDN, "example.org"
			})}},
		{name: "of a good Service's name", objects: []runtime.Object{tenantSlice(func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = "plain"
		})}},
		{name: "of a good Service's name with its namespace", objects: []runtime.Object{
			tenantSlice(func(s *discoveryv1.EndpointSlice) {
				s.Labels[discoveryv1.LabelServiceName] = "good/plain"
			})}},
	}
}
