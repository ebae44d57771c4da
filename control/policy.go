package control

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// annotationScheduler chooses a Service's scheduler, by the names of IPVS and maglev.
const annotationScheduler = "sluice.dev/scheduler"

func (s *service) readPolicy(spec *corev1.ServiceSpec) (malformed []fault) {
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP:
		// A ClusterIP service is reached from outside only by external IPs.
		s.local = len(spec.ExternalIPs) > 0
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		s.local = true
	default:
		malformed = append(malformed, refuse("spec.type", "%q is not a Service type", spec.Type))
	}
	switch spec.ExternalTrafficPolicy {
	case "", corev1.ServiceExternalTrafficPolicyCluster:
		s.local = false
	case corev1.ServiceExternalTrafficPolicyLocal:
	default:
		malformed = append(malformed, refuse("spec.externalTrafficPolicy", "%q is none of Cluster and Local", spec.ExternalTrafficPolicy))
	}
	if p := spec.InternalTrafficPolicy; p != nil {
		switch *p {
		case "", corev1.ServiceInternalTrafficPolicyCluster:
		case corev1.ServiceInternalTrafficPolicyLocal:
			s.inner = true
		default:
			malformed = append(malformed, refuse("spec.internalTrafficPolicy", "%q is none of Cluster and Local", *p))
		}
	}
	return malformed
}

// readAffinity: the API server fills the timeout in; a manifest may lack it
// (k8s.io/api core/v1 ClientIPConfig: 1 to 86,400 seconds, by default 10,800).
func (s *service) readAffinity(spec *corev1.ServiceSpec) (malformed []fault) {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return nil
	case corev1.ServiceAffinityClientIP:
	default:
		return append(malformed, refuse("spec.sessionAffinity", "%q is none of None and ClientIP", spec.SessionAffinity))
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinitySeconds {
		return append(malformed, refuse("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not between 1 and %d", seconds, maxAffinitySeconds))
	}
	s.affinity = uint32(seconds)
	return nil
}

const maxAffinitySeconds = 86_400

// readRanges: entries that are no CIDR are ignored, as kube-proxy does
// (k8s.io/kubernetes pkg/proxy/util MapCIDRsByIPFamily). But a family that has no
// other would thereby be open to everybody who was to be shut out; such a list no
// API server takes, and it is malformed here.
func (s *service) readRanges(spec *corev1.ServiceSpec) (malformed []fault) {
	var all, bad [2]bool
	var faults []fault
	for i, text := range spec.LoadBalancerSourceRanges {
		if strings.TrimSpace(text) == "" {
			continue
		}
		field := fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i)
		p, err := parsePrefix(text)
		if err != nil {
			bad[family(strings.Contains(text, ":"))] = true
			faults = append(faults, fault{field, fmt.Sprintf("%q %v; it is ignored", text, err), Warning})
			continue
		}
		f := family(p.Addr().Is6())
		all[f] = all[f] || p.Bits() == 0
		s.ranges[f] = append(s.ranges[f], p)
	}
	for f, name := range [2]string{"IPv4", "IPv6"} {
		if bad[f] && len(s.ranges[f]) == 0 {
			malformed = append(malformed, refuse("spec.loadBalancerSourceRanges", "has no valid %s entry, and ignoring the invalid would admit everybody", name))
		}
		if all[f] {
			s.ranges[f] = nil
		}
	}
	s.faults = append(s.faults, faults...)
	return malformed
}

// readScheduling: annotations are preferences, and a bad one is as none.
func (s *service) readScheduling(annotations map[string]string) {
	if name, ok := annotations[annotationScheduler]; ok {
		if scheduler, known := services.ParseScheduler(strings.TrimSpace(name)); known {
			s.scheduler = &scheduler
		} else {
			s.faults = append(s.faults, fault{"metadata.annotations[" + annotationScheduler + "]",
				fmt.Sprintf("%q is none of %s; the default is used", name, strings.Join(services.SchedulerNames(), ", ")), Warning})
		}
	}
	rules, faults := readWeights(annotations)
	s.weights = rules
	s.faults = append(s.faults, faults...)
}

// allowed are the clients that may use a frontend; nothing is all of them. Where the
// node itself may use a load balancer's address it comes from that very address if
// the node has it (k8s.io/kubernetes pkg/proxy/nftables/proxier.go, allowFromNode).
func (r *run) allowed(s *service, c claim) []netip.Prefix {
	ranges := s.ranges[family(!is4(c.key.Addr))]
	if len(ranges) == 0 || c.kind == services.ClusterIP || c.kind != services.LoadBalancer && !r.cfg.StrictSourceRanges {
		return nil
	}
	if c.kind == services.NodePort || !containsAny(ranges, r.cfg.LocalAddresses) {
		return ranges
	}
	vip := c.key.Addr.Netip()
	return append(ranges[:len(ranges):len(ranges)], netip.PrefixFrom(vip, vip.BitLen()))
}

func containsAny(ranges []netip.Prefix, addrs []header.Addr) bool {
	for _, a := range addrs {
		for _, p := range ranges {
			if p.Contains(a.Netip()) {
				return true
			}
		}
	}
	return false
}
