package explain

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// advice returns what to do if the verdict is not the intended one; "" where it most
// likely is. malformed is the reason for which the parser drops the packet, if it does.
func (a *answer) advice(v *status.ExplainView, malformed reason.Drop) string {
	switch {
	case v.Verdict == status.VerdictForward && a.unanswered.IsValid():
		return fmt.Sprintf("see that %v is up and on this link: ip neigh show %v", a.unanswered, a.unanswered)
	case v.Verdict == status.VerdictForward && a.unfinished > 0 && a.tuple.Stateful():
		return fmt.Sprintf("if the connection is not completed: %d segments came with unfinished checksums, and "+
			"`sluice doctor` names where", a.unfinished)
	case v.Verdict == status.VerdictForward:
		return ""
	case v.Verdict == status.VerdictPass:
		return a.passAdvice()
	case malformed != reason.None:
		return "no sender that means well does this: look at who sends it"
	}
	object, _, _ := strings.Cut(v.Service, ":")
	namespace, name, _ := strings.Cut(object, "/")
	slices := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s -o yaml", namespace, name)
	switch a.x.Verdict.Reason {
	case reason.NoFlow:
		return "it is in the middle of a connection that this gateway does not know: `sluice flows --client " +
			v.From.Addr().String() +
			"` lists those it knows; ask without --established what a new one gets"
	case reason.LateAnswer:
		return "its flow has another backend by now: nothing, unless it happens often; then see why the backend " +
			"answers late"
	case reason.BackendGone:
		return "its endpoint is gone, and the address may be another pod's by now: nothing"
	case reason.SourceRangeDenied:
		return "if the client may use it, put its address into spec.loadBalancerSourceRanges of Service " + object
	case reason.NoEndpoints:
		if len(v.Endpoints) == 0 {
			return "no EndpointSlice gives this port an endpoint of this family; its port must have the same name " +
				"and protocol: " + slices
		}
		return "make an endpoint ready; what there is: " + slices
	case reason.NoLocalEndpoints:
		return a.localAdvice(object)
	case reason.SpoofedSource:
		if a.x.Frontend != nil && a.snapshot.FromFrontend(&a.tuple, a.x.Frontend) {
			return fmt.Sprintf("%v is a frontend itself, and answered by this gateway: if a client has the address, "+
				"it must use another port", v.From)
		}
		return fmt.Sprintf("%v is an address of this gateway, which cannot come in from outside: if another host has "+
			"it, too, change one of them", v.From.Addr())
	case reason.NoRoute:
		return a.routeAdvice(v)
	case reason.LimitSourceConnections, reason.LimitSourceRate, reason.LimitServiceConnections, reason.LimitServiceRate:
		return limitAdvice(a.x.Verdict.Reason, object)
	case reason.FrontendRejected:
		return "unservedVIPPort of the configuration says what happens to all that no Service has at a VIP"
	}
	return "docs/counters.md says what " + v.Reason + " means"
}

// passAdvice is for packets that are left to the kernel.
func (a *answer) passAdvice() string {
	switch {
	case a.x.Frontend != nil || a.x.Known:
		return "`sluice status` says what is not applied yet, and why"
	case a.match != xdpprog.MatchNone:
		return "nothing: it is the kernel's, which has it after a detour through a worker"
	case a.snapshot.Owned(a.tuple.Dst)&(services.AddrNode|services.AddrLocal) != 0:
		return "nothing, if it is for a server on this node; else look at the node ports of the Service"
	}
	if a.offline != nil {
		return "look whether the Service has this address and port in its status, spec.externalIPs or " +
			"spec.clusterIPs, and at the problems, if there are any"
	}
	return "`sluice services` lists what is served, `sluice status` what is not and why; if kube-proxy runs here, " +
		"the packet may be its own"
}

// limitAdvice is for a new connection that a limit of its Service refuses.
func limitAdvice(r reason.Drop, object string) string {
	annotation, setting := "limit-connections", "connections"
	if r == reason.LimitSourceRate || r == reason.LimitServiceRate {
		annotation, setting = "limit-new-connections", "newConnections"
	}
	if r == reason.LimitSourceConnections || r == reason.LimitSourceRate {
		annotation, setting = annotation+"-per-source", setting+"PerSource"
	}
	return fmt.Sprintf("if it is to be served, raise the annotation sluice.dev/%s of Service %s, or limits.%s of the "+
		"configuration if the Service has none; `sluice flows --service %s` lists what is open", annotation, object,
		setting, object)
}

// localAdvice is for a Service of policy Local without an endpoint on this node.
func (a *answer) localAdvice(object string) string {
	field := "externalTrafficPolicy"
	if a.x.Frontend.Kind == services.ClusterIP {
		field = "internalTrafficPolicy"
	}
	svc := a.x.Frontend.Service
	if !svc.LocalExternal && field == "externalTrafficPolicy" ||
		!svc.LocalInternal && field == "internalTrafficPolicy" {
		return "endpoints exist, and terminate, have weight 0 or hints for others: see the list"
	}
	return fmt.Sprintf("send it to a node that has an endpoint, or set %s of Service %s to Cluster", field, object)
}

// routeAdvice distinguishes the two reasons for a missing route.
func (a *answer) routeAdvice(v *status.ExplainView) string {
	if a.x.Notify {
		return fmt.Sprintf("the kernel has no route to the backend: ip route get %v", v.Backend.Addr())
	}
	return "there is no address of this family to send from: give an interface one, or set snat.addresses of the " +
		"configuration"
}
