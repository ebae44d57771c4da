//go:build root

package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/test/bed/topo"
)

// Prefixes of the hostile tenant's endpoints, both routed to its backend: nobody answers at silent,
// and every connection to refusing ends with RST.
var (
	silentEndpoints   = netip.MustParsePrefix("10.244.0.0/16")
	refusingEndpoints = netip.MustParsePrefix("10.245.0.0/16")
)

// largeOneIn: of so many lists one is as long as it can be.
const largeOneIn = 100

// tlsPort is where the hostile tenant's backend answers by TLS.
const tlsPort = 8443

// hostileTenant writes random Services and EndpointSlices of one namespace at the extremes of what
// an object can say. One goroutine uses it.
type hostileTenant struct {
	random *rand.Rand
	server *k8stest.Server
	host   *topo.Host // its backend
	others []string   // addresses of the gateway, of clients and of other tenants
	slices [hostileServices]int
	writes int // objects written or deleted

	malformed bool // the object that is made now has values that the API does not permit
}

// write replaces, or deletes, one of the tenant's Services and its slices.
func (h *hostileTenant) write(i int) {
	s := h.service(i)
	if h.oneIn(8) {
		h.delete(i, s)
		return
	}
	all := []runtime.Object{s}
	n := 1 + h.random.IntN(3)
	for k := range n {
		all = append(all, h.slice(s, k))
	}
	for k := n; k < h.slices[i]; k++ {
		h.server.Delete(h.slice(s, k))
		h.writes++
	}
	if h.oneIn(2) { // slices come before their Service, or after it
		all[0], all[n] = all[n], all[0]
	}
	h.slices[i] = n
	for _, o := range all {
		h.server.Set(o)
	}
	h.writes += len(all)
}

// delete deletes the Service, and its slices or not.
func (h *hostileTenant) delete(i int, s *corev1.Service) {
	h.server.Delete(s)
	h.writes++
	if h.oneIn(2) {
		return
	}
	for k := range h.slices[i] {
		h.server.Delete(h.slice(s, k))
		h.writes++
	}
	h.slices[i] = 0
}

func (h *hostileTenant) oneIn(n int) bool { return h.random.IntN(n) == 0 }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// many is one of some sizes, or one time in largeOneIn the largest.
func (h *hostileTenant) many(largest int, sizes ...int) int {
	if h.oneIn(largeOneIn) {
		return largest
	}
	return pick(h.random, sizes...)
}

// or is a good value, or in a malformed object a bad one from time to time. Most objects are good:
// a malformed one changes nothing of what is served.
func or[T any](h *hostileTenant, good T, bad ...T) T {
	if h.malformed && h.oneIn(4) {
		return pick(h.random, bad...)
	}
	return good
}

// within is a random address of a prefix of 16 bits.
func (h *hostileTenant) within(p netip.Prefix) string {
	a := p.Addr().As4()
	a[2], a[3] = byte(h.random.IntN(256)), byte(1+h.random.IntN(254))
	return netip.AddrFrom4(a).String()
}

// service is a Service in a random form; its name is always the same.
func (h *hostileTenant) service(i int) *corev1.Service {
	r := h.random
	h.malformed = h.oneIn(4)
	name := fmt.Sprintf("t%03d", i)
	if i%10 == 0 {
		name += strings.Repeat("x", 59) // the longest name of a Service (RFC 1035 label)
	}
	own := fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, Annotations: h.annotations(),
			CreationTimestamp: metav1.Unix(1_700_000_000, 0)}, // older than everybody else's
		Spec: corev1.ServiceSpec{
			Type: or(h, pick(r, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
				corev1.ServiceTypeLoadBalancer), corev1.ServiceTypeExternalName, "Nonsense"),
			ClusterIP: or(h, own, "10.97.0.1", corev1.ClusterIPNone, "", "10.97.0", "::1", "0.0.0.0"),
			Ports:     h.ports(),
			ExternalTrafficPolicy: or(h, pick(r, corev1.ServiceExternalTrafficPolicyLocal,
				corev1.ServiceExternalTrafficPolicyCluster), "Nonsense"),
			HealthCheckNodePort: pick(r, 0, 30_000+r.Int32N(2768), 10_256),
		},
	}
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	for range h.many(128, 0, 1, 4) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, h.external())
	}
	for range pick(r, 0, 1, 1, 16) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: or(h, pick(r, fmt.Sprintf("198.19.%d.%d", i/250, 1+i%250), fmt.Sprintf("198.19.9.%d", 1+r.IntN(20)),
				"2001:db8:9::9"), "0.0.0.0", "224.0.0.1", "x")})
	}
	h.affinity(&s.Spec)
	h.sourceRanges(&s.Spec)
	if h.oneIn(20) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	return s
}

// external is an address that is the tenant's own, everybody else's or nobody's.
func (h *hostileTenant) external() string {
	if h.oneIn(4) {
		return pick(h.random, h.others...)
	}
	own := fmt.Sprintf("198.18.%d.%d", h.random.IntN(16), 1+h.random.IntN(254))
	return or(h, own, "127.0.0.1", "0.0.0.0", "255.255.255.255", "169.254.169.254", "224.0.0.5", "::", "fe80::1",
		"ff02::1", "::ffff:203.0.113.10", "203.0.113.10/32", "not an address", "")
}

func (h *hostileTenant) ports() (list []corev1.ServicePort) {
	r := h.random
	for k := range h.many(100, 1, 1, 3) {
		port := int32(1 + k)
		list = append(list, corev1.ServicePort{
			Name: or(h, fmt.Sprint("p", k), "p0", ""),
			Port: or(h, port, webPort, dnsPort, 10_256, 0, 65_535, 65_536, -1),
			Protocol: or(h, pick(r, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP,
				corev1.ProtocolSCTP), "", "Nonsense"),
			TargetPort: intstr.FromInt32(backendPort),
			NodePort:   or(h, 30_000+r.Int32N(2768), 0, webNodePort, 22, 65_536),
		})
	}
	return list
}

func (h *hostileTenant) affinity(spec *corev1.ServiceSpec) {
	spec.SessionAffinity = or(h, pick(h.random, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP), "Nonsense")
	if h.oneIn(2) {
		seconds := or(h, pick[int32](h.random, 1, 86_400), 0, -1, 86_401, math.MaxInt32, math.MinInt32)
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func (h *hostileTenant) sourceRanges(spec *corev1.ServiceSpec) {
	for k := range h.many(5000, 0, 1, 10) {
		spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, or(h, pick(h.random,
			fmt.Sprintf("10.%d.%d.0/24", k>>8, k&255), fmt.Sprintf("10.%d.%d.1/32", k>>8, k&255),
			fmt.Sprintf("2001:db8:%x::/48", k)), "10.0.0.0/33", "x", "", "0.0.0.0/0", "10.1.2.3/8"))
	}
}

// annotations are those that the gateway reads, each in half of all Services, and others that look
// like them.
func (h *hostileTenant) annotations() map[string]string {
	a := map[string]string{}
	set := func(key string, values ...string) {
		if h.oneIn(2) {
			a[key] = pick(h.random, values...)
		}
	}
	for _, key := range []string{"connections-per-source", "new-connections-per-source", "connections",
		"new-connections"} {
		set("sluice.dev/limit-"+key, "0", "1", "16777215", "4294967295", "18446744073709551616", "-1", "many", "")
	}
	set("sluice.dev/scheduler", "maglev", "rr", "wrr", "lc", "wlc", "sh", "sed", "nq", "dh", "Maglev", "",
		strings.Repeat("x", 4096))
	set(checkAnnotation, "tcp interval=1s timeout=1s", "tcp interval=1s timeout=1s", "tcp interval=10m timeout=10m",
		"tcp interval=1h timeout=10s fall=1", "http interval=1s timeout=1s path=/stream?n=1000000&every=100ms",
		"http interval=1s timeout=1s path=/bytes?n=1000000000", "https interval=1s timeout=1s rise=1 fall=1",
		"https interval=1s timeout=900ms slowstart=1h", "grpc interval=1s timeout=1s", "udp interval=1s require_reply",
		"dns interval=1s timeout=100ms name="+strings.Repeat("a.", 100), "none", "tcp interval=0s", "tcp fall=256",
		strings.Repeat("tcp interval=1s;", 16), strings.Repeat("tcp;", 10_000), "\x1b[2J", "=")
	set("sluice.dev/weights", "0.0.0.0/0=65535", "0.0.0.0/0=0", "node:x=1,zone:y=2", "x=y", "10.244.0.0/16=65536",
		h.manyWeights())
	set("sluice.dev/health-chek", "tcp")
	set("SLUICE.DEV/weights", "x=1")
	for k := range h.many(500, 0) {
		a[fmt.Sprintf("sluice.dev/x%d-%d", k, h.random.IntN(1000))] = strings.Repeat("y", 100)
	}
	return a
}

func (h *hostileTenant) manyWeights() string {
	var b strings.Builder
	for range h.many(2000, 1, 10) {
		fmt.Fprintf(&b, "%s=%d,", h.within(silentEndpoints), h.random.IntN(70_000))
	}
	return b.String()
}

// slice is slice k of a Service in a random form: the conditions of its endpoints are other ones
// each time.
func (h *hostileTenant) slice(s *corev1.Service, k int) *discoveryv1.EndpointSlice {
	r := h.random
	e := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, k),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: or(h, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN,
			"Nonsense"),
	}
	if h.oneIn(4) {
		e.Annotations = map[string]string{"sluice.dev/weights": h.manyWeights(), checkAnnotation: "tcp"}
	}
	for _, p := range s.Spec.Ports {
		name, protocol := p.Name, p.Protocol
		port := or(h, pick[int32](r, backendPort, backendPort, tlsPort, 1, 10_250), 0, 65_536)
		e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	if h.oneIn(10) {
		e.Ports = nil
	}
	for range h.many(1000, 1, 2, 10) {
		e.Endpoints = append(e.Endpoints, h.endpoint())
	}
	return e
}

func (h *hostileTenant) endpoint() discoveryv1.Endpoint {
	r := h.random
	condition := func() *bool { return pick(r, nil, new(bool), ptr(true), ptr(true)) }
	e := discoveryv1.Endpoint{
		Addresses: []string{h.address()},
		Conditions: discoveryv1.EndpointConditions{Ready: condition(), Serving: condition(),
			Terminating: condition()},
	}
	if h.oneIn(4) {
		e.NodeName, e.Zone = ptr(pick(r, gatewayNode, "other", "")), ptr(pick(r, "a", "b", strings.Repeat("z", 300)))
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: pick(r, "a", "b", "")}},
			ForNodes: []discoveryv1.ForNode{{Name: pick(r, gatewayNode, "other")}}}
	}
	e.Addresses = or(h, e.Addresses, nil, []string{""}, []string{h.address(), h.address()})
	return e
}

func (h *hostileTenant) address() string {
	good := h.within(silentEndpoints)
	switch h.random.IntN(10) {
	case 0:
		good = pick(h.random, h.others...)
	case 1, 2, 3:
		good = h.host.Addr4().String()
	case 4, 5:
		good = h.within(refusingEndpoints)
	}
	return or(h, good, "127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.5", "255.255.255.255", "::1", "2001:db8::9",
		"example.org", "10.244.0.1/32")
}
