package explain

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// advice returns what to do if the verdict is not the intended one; "" if it probably is. malformed
// is the reason for which the parser drops the packet, if it does.
func (a *answer) advice(v *status.ExplainView, malformed reason.Drop) string {
	switch {
	case v.Verdict == status.VerdictForward && a.unanswered.IsValid():
		return fmt.Sprintf("check that %v is up and on this link: ip neigh show %v", a.unanswered, a.unanswered)
	case v.Verdict == status.VerdictForward && a.unfinished > 0 && a.tuple.Stateful():
		return fmt.Sprintf("if the connection is not completed: %d segments arrived with unfinished checksums; "+
			"`sluice doctor` names the interface", a.unfinished)
	case v.Verdict == status.VerdictForward:
		return ""
	case a.isDenied() && a.denied.From == status.DeniedByConfiguration:
		return "to accept the client again, remove its entry from `deny` of the configuration"
	case a.isDenied():
		return "to accept the client again: sluice deny remove " + a.denied.Client.String()
	case v.Verdict == status.VerdictPass:
		return a.passAdvice()
	case malformed != reason.None:
		return "no well-behaved sender sends this: find out which host does"
	}
	object, _, _ := strings.Cut(v.Service, ":")
	namespace, name, _ := strings.Cut(object, "/")
	slices := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s -o yaml", namespace, name)
	switch a.x.Verdict.Reason {
	case reason.NoFlow:
		if a.x.Frontend == nil {
			return "it is for a source address, and of no flow: an answer later than the flow's timeout, or a scan; " +
				"`sluice flows --backend " + v.From.Addr().String() + "` lists the flows of a backend"
		}
		return "it belongs to a connection that this gateway does not know: `sluice flows --client " +
			v.From.Addr().String() +
			"` lists the known ones; leave out --established to explain a new connection"
	case reason.LateAnswer:
		return "its flow has another backend by now: do nothing, unless this happens often; then find out why the " +
			"backend answers late"
	case reason.BackendGone:
		if a.x.Reset {
			return "its node is gone, and its Service has no other: the client must connect again"
		}
		return "its endpoint is gone, and another pod may have the address by now: do nothing"
	case reason.SourceRangeDenied:
		return "if the client may use it, add its address to spec.loadBalancerSourceRanges of Service " + object
	case reason.NoEndpoints:
		if len(v.Endpoints) == 0 {
			return "no EndpointSlice gives this port an endpoint of this family; its port must have the same name " +
				"and protocol: " + slices
		}
		return "make an endpoint ready; this lists them: " + slices
	case reason.NoLocalEndpoints:
		return a.localAdvice(object)
	case reason.SpoofedSource:
		if a.x.Frontend != nil && a.snapshot.FromFrontend(&a.tuple, a.x.Frontend) {
			return fmt.Sprintf("%v is itself a frontend of this gateway: if a client has the address, "+
				"it must use another port", v.From)
		}
		if a.snapshot.IntoTunnel(&a.tuple) {
			return "replies to the port of the tunnel to nodes (directReturn.port) would look like packets of the " +
				"tunnel: the client must use another port"
		}
		return fmt.Sprintf("%v is an address of this gateway and cannot be a source outside of it: if another host "+
			"has the address, too, change one of them", v.From.Addr())
	case reason.NoRoute:
		return a.routeAdvice(v)
	case reason.LimitSourceConnections, reason.LimitSourceRate, reason.LimitServiceConnections, reason.LimitServiceRate:
		return limitAdvice(a.x.Verdict.Reason, object)
	case reason.FrontendRejected:
		return "unservedVIPPort of the configuration decides on packets to ports of a VIP that no Service has"
	}
	return "docs/counters.md explains " + v.Reason
}

// passAdvice is the advice for packets that are left to the kernel.
func (a *answer) passAdvice() string {
	switch {
	case a.x.Frontend != nil || a.x.Known:
		return "`sluice status` shows what is not applied yet, and why"
	case a.match != xdpprog.MatchNone:
		return "nothing: the kernel gets it, after a detour through a worker"
	case a.snapshot.Owned(a.tuple.Dst)&(services.AddrNode|services.AddrLocal) != 0:
		return "nothing, if it is for a server on this node; else check the node ports of the Service"
	}
	if a.offline != nil {
		return "check whether the Service has this address and port in its status, spec.externalIPs or " +
			"spec.clusterIPs, and the problems, if any"
	}
	return "`sluice services` lists the served ones, `sluice status` the problems; if kube-proxy runs here, " +
		"it may handle the packet"
}

// limitAdvice is the advice for a new connection that a limit of its Service rejects.
func limitAdvice(r reason.Drop, object string) string {
	annotation, setting := "limit-connections", "connections"
	if r == reason.LimitSourceRate || r == reason.LimitServiceRate {
		annotation, setting = "limit-new-connections", "newConnections"
	}
	if r == reason.LimitSourceConnections || r == reason.LimitSourceRate {
		annotation, setting = annotation+"-per-source", setting+"PerSource"
	}
	return fmt.Sprintf("to serve it, raise the annotation sluice.dev/%s of Service %s, or limits.%s of the "+
		"configuration if the Service has none; `sluice flows --service %s` lists the open flows", annotation, object,
		setting, object)
}

// localAdvice is the advice for a Service of policy Local without an endpoint on this node.
func (a *answer) localAdvice(object string) string {
	field := "externalTrafficPolicy"
	if a.x.Frontend.Kind == services.ClusterIP {
		field = "internalTrafficPolicy"
	}
	svc := a.x.Frontend.Service
	if svc.Direct {
		return "its endpoints are on this gateway's own node, where a direct Service does not reach them: send it to " +
			"another gateway"
	}
	if !svc.LocalExternal && field == "externalTrafficPolicy" ||
		!svc.LocalInternal && field == "internalTrafficPolicy" {
		return "endpoints exist, but terminate, have weight 0, or hints for other nodes or zones: see the list"
	}
	return fmt.Sprintf("send it to a node that has an endpoint, or set %s of Service %s to Cluster", field, object)
}

// routeAdvice distinguishes the two reasons for a missing route.
func (a *answer) routeAdvice(v *status.ExplainView) string {
	if a.x.Notify {
		return fmt.Sprintf("the kernel has no route to the backend: ip route get %v", v.Backend.Addr())
	}
	if a.x.Direct() && a.x.Backend != nil {
		return fmt.Sprintf("a tunnel to node %v must leave by an interface of the gateway that has an address of its "+
			"family: ip route get %[1]v", v.Backend.Addr())
	}
	return "there is no source address of this family: give one to an interface, or set snat.addresses of the " +
		"configuration"
}
