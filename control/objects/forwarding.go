package objects

import (
	"strconv"
	"strings"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/wording"
)

// annotationForwarding is the annotation that chooses how packets reach the endpoints of a Service:
// nat (the default), direct, or routed.
const annotationForwarding = "sluice.dev/forwarding"

var forwardings = []string{"nat", "direct", "routed"}

// readForwarding reads the annotation. It ignores an invalid one with a warning. It must be called
// after readPolicy and the other annotations.
func (s *Service) readForwarding(annotations map[string]string) {
	const field = "metadata.annotations[" + annotationForwarding + "]"
	value, ok := annotations[annotationForwarding]
	if !ok {
		return
	}
	switch strings.TrimSpace(value) {
	case "nat":
		return
	case "direct":
		s.readDirect(field)
	case "routed":
		s.readRouted(field)
	default:
		s.Problems = append(s.Problems, warn(field, "%s is none of %s%s; packets are translated (nat)",
			Clip(strconv.Quote(value)), strings.Join(forwardings, ", "), wording.Suggest(Clip(value), forwardings)))
	}
}

// readRouted makes the Service Routed, unless its policy keeps the client's address anyway.
func (s *Service) readRouted(field string) {
	if s.LocalExternal {
		s.Problems = append(s.Problems, warn(field, "routed has no effect with spec.externalTrafficPolicy: Local, "+
			"which keeps the client's address and serves endpoints of the gateway's node only; use policy Cluster"))
		return
	}
	s.Routed = true
	s.dropHeader(field, "routed")
}

// dropHeader removes the PROXY header, with a warning: endpoints see the client's address without
// it.
func (s *Service) dropHeader(field, forwarding string) {
	if s.ProxyProtocol != (ProxyProtocol{}) {
		s.Problems = append(s.Problems, warn(field, "endpoints of a %s Service get no header of the PROXY protocol: "+
			"they see the client's address", forwarding))
		s.ProxyProtocol = ProxyProtocol{}
	}
}

// readDirect makes the Service Direct if kube-proxy on the endpoints' nodes keeps the client's
// address, which it does for policy Local.
func (s *Service) readDirect(field string) {
	if !s.LocalExternal {
		s.Problems = append(s.Problems, warn(field, "direct needs spec.externalTrafficPolicy: Local, with which "+
			"kube-proxy keeps the client's address; packets are translated (nat)"))
		return
	}
	s.Direct = true
	s.dropHeader(field, "direct")
	if s.Scheduler != nil && !s.Scheduler.ByHash() {
		s.Problems = append(s.Problems, warn("metadata.annotations["+annotationScheduler+"]",
			"%v: a direct Service needs a scheduler by hash, so that every gateway finds the same node; %v is used",
			*s.Scheduler, services.Maglev))
		s.Scheduler = nil
	}
	if len(s.Checks) > 0 {
		s.Problems = append(s.Problems, warn("metadata.annotations["+annotationCheck+"]",
			"has no effect: the nodes of a direct Service choose among its endpoints"))
	}
	if s.Limits != (Limits{}) {
		s.Problems = append(s.Problems, warn("metadata.annotations", "limits of connections have no effect on a "+
			"direct Service: the gateway does not see whether a connection is established"))
	}
}
