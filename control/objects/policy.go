package objects

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/fastpath/services"
)

// annotationScheduler is the annotation that chooses the scheduler of a Service: maglev, or one of
// the names of IPVS.
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
		malformed = append(malformed, refuse("spec.externalTrafficPolicy", "%q is none of Cluster and Local",
			spec.ExternalTrafficPolicy))
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

// readAffinity takes the default timeout where the field is missing: the API server sets it, but a
// manifest need not have it (k8s.io/api core/v1 ClientIPConfig: 1 to 86,400 seconds, by default
// 10,800).
func (s *Service) readAffinity(spec *corev1.ServiceSpec) (malformed []FieldProblem) {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return nil
	case corev1.ServiceAffinityClientIP:
	default:
		return append(malformed, refuse("spec.sessionAffinity", "%q is none of None and ClientIP",
			spec.SessionAffinity))
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinitySeconds {
		return append(malformed, refuse("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
			"%d is not between 1 and %d", seconds, maxAffinitySeconds))
	}
	s.Affinity = uint32(seconds)
	return nil
}

const maxAffinitySeconds = 86_400

// readRanges ignores invalid entries, as kube-proxy does (k8s.io/kubernetes pkg/proxy/util
// MapCIDRsByIPFamily). But if a family has invalid entries only, ignoring them would admit all
// clients of that family. No API server accepts such a list, so the Service is malformed.
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
			problems = append(problems, warn(field, "%q %v; it is ignored", text, err))
			continue
		}
		f := Family(p.Addr().Is6())
		all[f] = all[f] || p.Bits() == 0
		s.Ranges[f] = append(s.Ranges[f], p)
	}
	for f, name := range [2]string{"IPv4", "IPv6"} {
		if bad[f] && len(s.Ranges[f]) == 0 {
			malformed = append(malformed, refuse("spec.loadBalancerSourceRanges",
				"has no valid %s entry, and ignoring the invalid would admit everybody", name))
		}
		if all[f] {
			s.Ranges[f] = nil
		}
	}
	s.Problems = append(s.Problems, problems...)
	return malformed
}

// readScheduling reads the annotations. It ignores invalid ones with a
// warning.
func (s *Service) readScheduling(annotations map[string]string) {
	if name, ok := annotations[annotationScheduler]; ok {
		if scheduler, known := services.ParseScheduler(strings.TrimSpace(name)); known {
			s.Scheduler = &scheduler
		} else {
			s.Problems = append(s.Problems, warn("metadata.annotations["+annotationScheduler+"]",
				"%q is none of %s; the default is used", name, strings.Join(services.SchedulerNames(), ", ")))
		}
	}
	s.readLimits(annotations)
	s.readChecks(annotations)
	s.readProxyProtocol(annotations)
	s.readForwarding(annotations)
	rules, problems := readWeights(annotations)
	s.Weights = rules
	s.Problems = append(s.Problems, problems...)
	s.Problems = append(s.Problems, unknownAnnotations(annotations, KindService, serviceAnnotations)...)
}

// healthPort returns the health check node port of a Service of type LoadBalancer with external
// traffic policy Local (k8s.io/kubernetes pkg/api/v1/service, NeedsHealthCheck). It returns 0 for
// any other Service, with any value of the field.
func healthPort(spec *corev1.ServiceSpec) uint16 {
	p := spec.HealthCheckNodePort
	if spec.Type != corev1.ServiceTypeLoadBalancer ||
		spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || p < 1 || p > 1<<16-1 {
		return 0
	}
	return uint16(p)
}
