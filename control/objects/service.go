package objects

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// labelProxyName is the label, with any value, of Services that another proxy serves.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Service has the fields of a v1 Service that are compiled. It is immutable.
type Service struct {
	ID            ObjectID
	Created       int64 // Unix seconds; math.MaxInt64 where the object has no creationTimestamp
	Families      [2]bool
	LocalExternal bool   // external traffic policy Local, where it is effective
	LocalInternal bool   // internal traffic policy Local
	skip          string // why kube-proxy ignores it; "" if it does not
	// HealthPort is spec.healthCheckNodePort where it is effective, else 0.
	HealthPort uint16
	refused    bool // it has neither ClusterIPs nor IP families, so no part is served
	Ports      []ServicePort
	VIPs       []VIP // in order of address, ClusterIPs among them
	// Ranges are spec.loadBalancerSourceRanges by family; an empty list admits every client.
	Ranges    [2][]netip.Prefix
	Affinity  uint32              // seconds; 0 is none
	Scheduler *services.Scheduler // nil: the configuration's
	Weights   WeightRules
	Limits    Limits
	Checks    Checks // nil: the configuration's
	// ProxyProtocol: endpoints get PROXY headers in front of TCP clients' bytes.
	ProxyProtocol ProxyProtocol
	// Direct: the nodes of endpoints get the packets untranslated in a tunnel, and answer clients
	// directly. Only with LocalExternal.
	Direct bool
	// Routed: endpoints get the clients' addresses, and the network routes their answers back
	// through the gateway. Not with LocalExternal.
	Routed   bool
	Problems []FieldProblem
}

// ServicePort is one of spec.ports. Its identity is name and protocol.
type ServicePort struct {
	Name           string
	Proto          uint8
	Port, NodePort uint16
}

// VIP is an address that clients send to.
type VIP struct {
	Addr header.Addr
	Kind services.FrontendKind
}

// Family indexes per-family tables: 0 for IPv4, 1 for IPv6.
func Family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

func (s *Service) equal(o *Service) bool {
	return s.ID == o.ID && s.Created == o.Created && s.Families == o.Families && s.LocalExternal == o.LocalExternal &&
		s.LocalInternal == o.LocalInternal &&
		s.skip == o.skip && s.HealthPort == o.HealthPort && s.refused == o.refused && slices.Equal(s.Ports, o.Ports) &&
		slices.Equal(s.VIPs, o.VIPs) &&
		slices.Equal(s.Ranges[0], o.Ranges[0]) && slices.Equal(s.Ranges[1], o.Ranges[1]) && s.Affinity == o.Affinity &&
		equalPointees(s.Scheduler, o.Scheduler) && slices.Equal(s.Weights, o.Weights) && s.Limits == o.Limits &&
		slices.Equal(s.Checks, o.Checks) && s.ProxyProtocol == o.ProxyProtocol && s.Direct == o.Direct &&
		s.Routed == o.Routed && slices.Equal(s.Problems, o.Problems)
}

// Served reports whether any part of a Service is served; s may be nil.
func (s *Service) Served() bool { return s != nil && s.skip == "" && !s.refused }

func equalPointees[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// TrimService copies the fields that are compiled. malformed lists what no API server would have
// accepted; the last good version of the object then stays in use.
func TrimService(in *corev1.Service) (s *Service, malformed []FieldProblem) {
	s = &Service{ID: MakeObjectID(KindService, in.Namespace, in.Name), Created: math.MaxInt64}
	malformed = checkName(s.ID)
	if t := in.CreationTimestamp; !t.IsZero() {
		s.Created = t.Unix()
	}
	if s.skip = skipService(in); s.skip != "" {
		return s, malformed
	}
	malformed = append(malformed, s.readPorts(in.Spec.Ports)...)
	malformed = append(malformed, s.readFamilies(&in.Spec)...)
	malformed = append(malformed, s.readPolicy(&in.Spec)...)
	malformed = append(malformed, s.readAffinity(&in.Spec)...)
	malformed = append(malformed, s.readRanges(&in.Spec)...)
	s.readScheduling(in.Annotations)
	s.HealthPort = healthPort(&in.Spec)
	s.readAddresses(in)
	return s, malformed
}

// skipService returns why kube-proxy ignores a Service; "" if it does not. That is no problem of
// the Service.
func skipService(in *corev1.Service) string {
	_, foreign := in.Labels[labelProxyName]
	switch {
	case foreign:
		return "label " + labelProxyName
	case in.Spec.Type == corev1.ServiceTypeExternalName:
		return "type ExternalName"
	case in.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(in.Spec.ClusterIPs, corev1.ClusterIPNone):
		return "headless"
	case in.UID != "" && in.Spec.ClusterIP == "" && len(in.Spec.ClusterIPs) == 0:
		return "no ClusterIP" // as the API server has it; a manifest has neither
	}
	return ""
}

func (s *Service) readPorts(ports []corev1.ServicePort) (malformed []FieldProblem) {
	type number struct {
		proto uint8
		port  uint16
	}
	names, numbers, nodePorts := map[ServicePort]bool{}, map[number]bool{}, map[number]bool{}
	bad := func(i int, field, format string, args ...any) {
		malformed = append(malformed, refuse(fmt.Sprintf("spec.ports[%d]%s", i, field), format, args...))
	}
	if len(ports) == 0 {
		malformed = append(malformed, refuse("spec.ports", "is empty"))
	}
	for i, p := range ports {
		proto, ok := protocol(p.Protocol)
		if !ok {
			bad(i, ".protocol", "%q is none of TCP, UDP and SCTP", p.Protocol)
			continue
		}
		if p.Port < 1 || p.Port > math.MaxUint16 {
			bad(i, ".port", "%d is not between 1 and 65535", p.Port)
			continue
		}
		if p.NodePort < 0 || p.NodePort > math.MaxUint16 {
			bad(i, ".nodePort", "%d is not between 0 and 65535", p.NodePort)
			continue
		}
		if p.Name != "" && len(validation.IsDNS1123Label(p.Name)) > 0 {
			bad(i, ".name", "%q is not a DNS label", p.Name)
			continue
		}
		sp := ServicePort{p.Name, proto, uint16(p.Port), uint16(p.NodePort)}
		switch name := (ServicePort{Name: sp.Name}); {
		case names[name]:
			bad(i, ".name", "%q is the name of another port", p.Name)
		case numbers[number{proto, sp.Port}]:
			bad(i, ".port", "%d/%s is another port's", p.Port, ProtocolName(proto))
		case sp.NodePort != 0 && nodePorts[number{proto, sp.NodePort}]:
			bad(i, ".nodePort", "%d/%s is another port's", p.NodePort, ProtocolName(proto))
		default:
			names[name], numbers[number{proto, sp.Port}], nodePorts[number{proto, sp.NodePort}] = true, true, true
			s.Ports = append(s.Ports, sp)
		}
	}
	return malformed
}

// readFamilies reads the families that are served: the families of the ClusterIPs or, without
// ClusterIPs, as in a manifest, spec.ipFamilies.
func (s *Service) readFamilies(spec *corev1.ServiceSpec) (malformed []FieldProblem) {
	ips, field := clusterIPs(spec), "spec.clusterIPs[%d]"
	if len(spec.ClusterIPs) == 0 {
		field = "spec.clusterIP"
	}
	for i, ip := range ips {
		a, err := parseAddr(ip)
		if err != nil {
			if len(spec.ClusterIPs) > 0 {
				field = fmt.Sprintf(field, i)
			}
			return append(malformed, refuse(field, "%q %v", ip, err))
		}
		s.Families[Family(a.Is6())] = true
	}
	if len(ips) > 0 {
		return nil
	}
	for i, f := range spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			return append(malformed, refuse(fmt.Sprintf("spec.ipFamilies[%d]", i), "%q is none of IPv4 and IPv6", f))
		}
		s.Families[Family(f == corev1.IPv6Protocol)] = true
	}
	if len(spec.IPFamilies) == 0 {
		s.refused = true
		s.Problems = append(s.Problems,
			refuse("spec.ipFamilies", "is missing, and so are spec.clusterIPs: say which of IPv4 and IPv6 to serve"))
	}
	return nil
}

// readAddresses keeps the load balancer addresses, external IPs and ClusterIPs of the served
// families. An address in several fields has the kind of the first one.
func (s *Service) readAddresses(in *corev1.Service) {
	kinds := map[header.Addr]services.FrontendKind{}
	add := func(field, text string, kind services.FrontendKind) {
		a, err := parseAddr(text)
		if err == nil {
			err = unicast(a)
		}
		if err != nil {
			s.Problems = append(s.Problems, refuse(field, "%q %v", text, err))
			return
		}
		addr := header.AddrFrom(a)
		if _, twice := kinds[addr]; !twice && s.Families[Family(a.Is6())] {
			kinds[addr] = kind
		}
	}
	for _, ingress := range in.Status.LoadBalancer.Ingress {
		proxied := ingress.IPMode != nil && *ingress.IPMode == corev1.LoadBalancerIPModeProxy
		if ingress.IP != "" && !proxied {
			add("status.loadBalancer.ingress", ingress.IP, services.LoadBalancer)
		}
	}
	for _, ip := range in.Spec.ExternalIPs {
		add("spec.externalIPs", ip, services.ExternalIP)
	}
	for _, ip := range clusterIPs(&in.Spec) {
		add("spec.clusterIPs", ip, services.ClusterIP)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(kinds), CompareAddrs) {
		s.VIPs = append(s.VIPs, VIP{addr, kinds[addr]})
	}
}

func clusterIPs(spec *corev1.ServiceSpec) []string {
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		return []string{spec.ClusterIP}
	}
	return spec.ClusterIPs
}

// MakeObjectID returns the ID of an object. An empty namespace becomes "default", except for a
// Node, which has none.
func MakeObjectID(kind, namespace, name string) ObjectID {
	if namespace == "" && kind != KindNode {
		namespace = "default"
	}
	return ObjectID{kind, namespace, name}
}

func checkName(id ObjectID) (malformed []FieldProblem) {
	if len(validation.IsDNS1123Subdomain(id.Name)) > 0 {
		malformed = append(malformed, refuse("metadata.name", "%q is not a DNS name", id.Name))
	}
	if id.Kind != KindNode && len(validation.IsDNS1123Label(id.Namespace)) > 0 {
		malformed = append(malformed, refuse("metadata.namespace", "%q is not a DNS label", id.Namespace))
	}
	return malformed
}

// protocol returns the IP protocol number of a Kubernetes protocol; the empty name is TCP.
func protocol(p corev1.Protocol) (uint8, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return header.ProtoTCP, true
	case corev1.ProtocolUDP:
		return header.ProtoUDP, true
	case corev1.ProtocolSCTP:
		return header.ProtoSCTP, true
	}
	return 0, false
}

// ProtocolName returns TCP, UDP or SCTP, or the number of any other protocol.
func ProtocolName(proto uint8) string {
	switch proto {
	case header.ProtoTCP:
		return "TCP"
	case header.ProtoUDP:
		return "UDP"
	case header.ProtoSCTP:
		return "SCTP"
	}
	return fmt.Sprint(proto)
}

// IDOf returns the ID of a *Service, *Slice or *Node.
func IDOf(o any) ObjectID {
	switch o := o.(type) {
	case *Service:
		return o.ID
	case *Slice:
		return o.ID
	}
	return o.(*Node).ID
}
