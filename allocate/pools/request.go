package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Prefixes of the annotations that are read, including the slash.
const (
	metallb    = "metallb.io/"
	oldMetalLB = "metallb.universe.tf/"
	cilium     = "lbipam.cilium.io/"
)

// Annotations by their meaning. The first one that is present counts.
var (
	wishAnnotations = []string{metallb + "loadBalancerIPs", oldMetalLB + "loadBalancerIPs", cilium + "ips",
		"io.cilium/lb-ipam-ips"}
	poolAnnotations    = []string{metallb + "address-pool", oldMetalLB + "address-pool"}
	sharingAnnotations = []string{metallb + "allow-shared-ip", oldMetalLB + "allow-shared-ip", cilium + "sharing-key",
		"io.cilium/lb-ipam-sharing-key"}
)

// AnnotationOfMetalLB reports whether an annotation belongs to MetalLB.
func AnnotationOfMetalLB(name string) bool {
	return strings.HasPrefix(name, metallb) || strings.HasPrefix(name, oldMetalLB)
}

// AnnotationRead reports whether Sluice reads an annotation of Services.
func AnnotationRead(name string) bool {
	return slices.Contains(wishAnnotations, name) || slices.Contains(poolAnnotations, name) ||
		slices.Contains(sharingAnnotations, name)
}

// SortByAge sorts Services in the order in which they are processed: the oldest first, then by key.
func SortByAge(list []*corev1.Service) {
	slices.SortFunc(list, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(KeyOf(a), KeyOf(b)))
	})
}

// CompareWishes orders Services of manifests, which have no age: Services that ask for an address
// come first, then by key.
func CompareWishes(s, t *corev1.Service) int {
	rank := func(s *corev1.Service) int {
		if wish, _ := annotation(s, wishAnnotations); wish != "" || s.Spec.LoadBalancerIP != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(s), rank(t)), strings.Compare(KeyOf(s), KeyOf(t)))
}

// Request is the part of a Service that the Allocator needs.
type Request struct {
	Key             string    // namespace/name
	UID             types.UID // a Service with the same name and another UID is another Service
	Namespace       string
	Labels          labels.Set
	NamespaceLabels labels.Set
	// V4, V6 are the families of the ClusterIPs.
	V4, V6 bool
	// V6First: the first ClusterIP is an IPv6 address.
	V6First bool
	Policy  corev1.IPFamilyPolicy
	Ports   []Port
	Sharing Sharing
	// Pool and Addresses are the requested ones; empty if the Service requests none.
	Pool      string
	Addresses []netip.Addr

	probes int // shared addresses that were tried, up to maxProbes
}

func (r *Request) dual() bool { return r.V4 && r.V6 }

// oneFamilyEnough reports whether one family is enough if two are requested.
func (r *Request) oneFamilyEnough() bool { return r.Policy == corev1.IPFamilyPolicyPreferDualStack }

// KeyOf returns the key of a Service.
func KeyOf(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

// RequestOf parses a Service. If it returns an error, the Request has the parts that could be read.
func RequestOf(s *corev1.Service, namespaceLabels map[string]string) (*Request, *Refusal) {
	r := &Request{
		Key: KeyOf(s), UID: s.UID, Namespace: s.Namespace, Labels: s.Labels, NamespaceLabels: namespaceLabels,
		Policy: corev1.IPFamilyPolicySingleStack, Sharing: sharingOf(s),
	}
	if s.Spec.IPFamilyPolicy != nil {
		r.Policy = *s.Spec.IPFamilyPolicy
	}
	for _, v6 := range familiesOf(s) {
		r.V6First = r.V6First || v6 && !r.V4
		r.V4, r.V6 = r.V4 || !v6, r.V6 || v6
	}
	for _, p := range s.Spec.Ports {
		r.Ports = append(r.Ports, Port{p.Protocol, p.Port})
	}
	r.Pool, _ = annotation(s, poolAnnotations)
	var refusal *Refusal
	r.Addresses, refusal = wishOf(s)
	switch {
	case refusal != nil:
	case r.Policy == corev1.IPFamilyPolicyRequireDualStack && r.V4 != r.V6:
		refusal = refuse(NotDualStack, "ipFamilyPolicy is RequireDualStack, but there is one ClusterIP")
	case len(r.Addresses) > 0:
		refusal = r.checkFamilies()
	}
	return r, refusal
}

func clusterIPs(s *corev1.Service) (list []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	for _, text := range texts {
		if a, err := parseAddress(text); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// familiesOf returns for each ClusterIP whether it is an IPv6 address. A manifest has no ClusterIPs
// before an API server has assigned them: then it returns the same for each of spec.ipFamilies.
func familiesOf(s *corev1.Service) (v6 []bool) {
	for _, a := range clusterIPs(s) {
		v6 = append(v6, a.Is6())
	}
	if len(v6) > 0 || s.UID != "" {
		return v6
	}
	for _, f := range s.Spec.IPFamilies {
		v6 = append(v6, f == corev1.IPv6Protocol)
	}
	return v6
}

// wishOf returns the addresses that a Service asks for.
func wishOf(s *corev1.Service) ([]netip.Addr, *Refusal) {
	text, name := annotation(s, wishAnnotations)
	if s.Spec.LoadBalancerIP != "" {
		if text != "" {
			return nil, refuse(BadWish, "spec.loadBalancerIP and annotation %s are both set: remove one", name)
		}
		text, name = s.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	}
	var list []netip.Addr
	for _, word := range words(text) {
		a, err := parseAddress(word)
		if err != nil {
			return nil, refuse(BadWish, "%s: %s", name, err)
		}
		list = append(list, a)
	}
	if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
		return nil, refuse(BadWish, "%s is %q: one address, or one of each family", name, text)
	}
	return list, nil
}

// checkFamilies compares the families of the requested addresses with those of the ClusterIPs.
func (r *Request) checkFamilies() *Refusal {
	v4, v6 := families(r.Addresses)
	if v4 != r.V4 || v6 != r.V6 {
		return refuse(BadWish, "asks for %s, and its ClusterIPs are %s: ask for one address of each family of the "+
			"ClusterIPs", Join(r.Addresses), familyNames(r.V4, r.V6))
	}
	return nil
}

func families(list []netip.Addr) (v4, v6 bool) {
	for _, a := range list {
		v4, v6 = v4 || a.Is4(), v6 || a.Is6()
	}
	return v4, v6
}

func familyNames(v4, v6 bool) string {
	switch {
	case v4 && v6:
		return "IPv4 and IPv6"
	case v6:
		return "IPv6"
	}
	return "IPv4"
}

// annotation returns the first annotation of names that is present, and its name.
func annotation(s *corev1.Service, names []string) (value, name string) {
	for _, n := range names {
		if v, there := s.Annotations[n]; there {
			return v, n
		}
	}
	return "", ""
}

// words splits a list at commas.
func words(text string) []string {
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return slices.DeleteFunc(list, func(w string) bool { return w == "" })
}

// Join returns the addresses as text, with commas between them.
func Join(list []netip.Addr) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// StatusOf returns the addresses that the status lists.
func StatusOf(s *corev1.Service) (list []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := parseAddress(i.IP); err == nil {
			list = append(list, a)
		}
	}
	return list
}
