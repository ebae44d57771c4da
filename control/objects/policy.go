package objects

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/fastpath/services"
)

// annotationScheduler chooses a Service's scheduler, by the names of IPVS and maglev.
const annotationScheduler = "sluice.dev/scheduler"

func (s *Service) readPolicy(spec *corev1.ServiceSpec) (malformed []FieldProblem) {
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP:
		// A ClusterIP service is reached from outside only by external IPs.
		s.LocalExternal = len(spec.ExternalIPs) > 0
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		s.LocalExternal = true
	default:
		malformed = append(malformed, refuse("spec.type", "%q is not a Service type", spec.Type))
	}
	switch spec.ExternalTrafficPolicy {
	case "", corev1.ServiceExternalTrafficPolicyCluster:
		s.LocalExternal = false
	case corev1.ServiceExternalTrafficPolicyLocal:
	default:
		malformed = append(malformed, refuse("spec.externalTrafficPolicy", "%q is none of Cluster and Local", spec.ExternalTrafficPolicy))
	}
	if p := spec.InternalTrafficPolicy; p != nil {
		switch *p {
		case "", corev1.ServiceInternalTrafficPolicyCluster:
		case corev1.ServiceInternalTrafficPolicyLocal:
			s.LocalInternal = true
		default:
			malformed = append(malformed, refuse("spec.internalTrafficPolicy", "%q is none of Cluster and Local", *p))
		}
	}
	return malformed
}

// readAffinity: the API server fills the timeout in; a manifest may lack it
// (k8s.io/api core/v1 ClientIPConfig: 1 to 86,400 seconds, by default 10,800).
func (s *Service) readAffinity(spec *corev1.ServiceSpec) (malformed []FieldProblem) {
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
	s.Affinity = uint32(seconds)
	return nil
}

const maxAffinitySeconds = 86_400

// readRanges: entries that are no CIDR are ignored, as kube-proxy does
// (k8s.io/kubernetes pkg/proxy/util MapCIDRsByIPFamily). But a family that has no
// other would thereby be open to everybody who was to be shut out; such a list no
// API server takes, and it is malformed here.
func (s *Service) readRanges(spec *corev1.ServiceSpec) (malformed []FieldProblem) {
	var all, bad [2]bool
	var problems []FieldProblem
	for i, text := range spec.LoadBalancerSourceRanges {
		if strings.TrimSpace(text) == "" {
			continue
		}
		field := fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i)
		p, err := parsePrefix(text)
		if err != nil {
			bad[Family(strings.Contains(text, ":"))] = true
			problems = append(problems, FieldProblem{field, fmt.Sprintf("%q %v; it is ignored", text, err), Warning})
			continue
		}
		f := Family(p.Addr().Is6())
		all[f] = all[f] || p.Bits() == 0
		s.Ranges[f] = append(s.Ranges[f], p)
	}
	for f, name := range [2]string{"IPv4", "IPv6"} {
		if bad[f] && len(s.Ranges[f]) == 0 {
			malformed = append(malformed, refuse("spec.loadBalancerSourceRanges", "has no valid %s entry, and ignoring the invalid would admit everybody", name))
		}
		if all[f] {
			s.Ranges[f] = nil
		}
	}
	s.Problems = append(s.Problems, problems...)
	return malformed
}

// readScheduling: annotations are preferences, and a bad one is as none.
func (s *Service) readScheduling(annotations map[string]string) {
	if name, ok := annotations[annotationScheduler]; ok {
		if scheduler, known := services.ParseScheduler(strings.TrimSpace(name)); known {
			s.Scheduler = &scheduler
		} else {
			s.Problems = append(s.Problems, FieldProblem{"metadata.annotations[" + annotationScheduler + "]",
				fmt.Sprintf("%q is none of %s; the default is used", name, strings.Join(services.SchedulerNames(), ", ")), Warning})
		}
	}
	rules, problems := readWeights(annotations)
	s.Weights = rules
	s.Problems = append(s.Problems, problems...)
}

// HealthPort is the health check node port of a Service that has one: type
// LoadBalancer with external traffic policy Local (k8s.io/kubernetes
// pkg/api/v1/service, NeedsHealthCheck). A number in another Service is ignored.
func healthPort(spec *corev1.ServiceSpec) uint16 {
	p := spec.HealthCheckNodePort
	if spec.Type != corev1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || p < 1 || p > 1<<16-1 {
		return 0
	}
	return uint16(p)
}
