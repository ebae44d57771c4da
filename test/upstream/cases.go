package upstream

// Case is a case of e2e.test.
type Case struct {
	// Name is as `e2e.test --list-tests` prints it, without "[sig-network] ".
	Name string
	// In is how the cluster is arranged for it; nil if it does not run, most often because it
	// cannot apply to a gateway, and Why is the reason.
	In  *Arrangement
	Why string
	// By is the drop reason whose counter rises for it, where the case is about packets that nobody
	// gets; if it is empty, flows of the case's own Services are counted.
	By string
	// Alone: no other case runs meanwhile, because it uses a resource that nodes have once, or a
	// counter that is not kept for each Service.
	Alone bool
}

// Reasons that several cases have.
const (
	onlyObjects  = "sends no packets: it is about objects of the API server"
	onlyNames    = "sends no packets to a Service: it is about DNS"
	localTraffic = "internalTrafficPolicy Local is about the node that the client's pod runs on; a gateway is " +
		"another one"
	ownAddress = "the endpoint asks its own node for its own node port: such packets never pass a NIC"
	podToPod   = "packets from pod to pod, of no Service"
	noSCTP     = "the kernel has no SCTP sockets"
	samePin    = "Maglev chooses by the client's address, so that gateways agree: a client whose pin has ended gets " +
		"the backend that it had, " +
		"while the endpoints are the same; the case wants another one (kubernetes.md, Affinity)"
	tooLong = "applies, and is not run: five rolling updates of pods that take a minute each to end are 16 minutes; " +
		"for rolling updates " +
		"under traffic see rollout.md"
	kubeProxys = "is about a kube-proxy itself, not about what Services get"
)

// group is of cases that are all about the same other thing.
type group struct{ Prefix, Why string }

// groups are of cases that are not about Services' traffic, by how their names begin. A case that
// is neither listed nor in a group fails the run: a new release must not add cases in silence.
var groups = []group{
	{"DNS ", onlyNames},
	{"DNS configMap ", onlyNames},
	{"API Server ", onlyObjects},
	{"Ingress API ", onlyObjects},
	{"IngressClass ", onlyObjects},
	{"EndpointSliceMirroring ", onlyObjects},
	{"Endpoints ", onlyObjects},
	{"EndpointsController ", onlyObjects},
	{"ServiceCIDR and IPAddress API ", onlyObjects},
	{"Service endpoints latency ", "measures controllers: it sends no packets"},
	{"Netpol ", "NetworkPolicy is the pod network's: the gateway says so in its limits"},
	{"Proxy ", "goes through the API server's proxy, which dials endpoints itself"},
	{"HostPort ", "host ports are the pod network's"},
	{"NoSNAT ", podToPod},
	{"Networking Granular Checks: Pods ", podToPod},
	{"Networking IPerf2 ", podToPod},
	{"Topology Hints ",
		"hints are for the node of the client's pod; for the gateway's own, see hints-zone in kubernetes.md"},
	{"Traffic Distribution ",
		"hints are for the node of the client's pod; for the gateway's own, see hints-node in kubernetes.md"},
	{"KubeProxy ", kubeProxys},
	{"kube-proxy migration ", kubeProxys},
	{"[Feature:PerformanceDNS] ", onlyNames},
}

// cases are the cases of all files about Services' traffic, in the order of the files.
var cases = concat(services, balancers, localBalancers, conntrack, granular, dualStack, others)

func concat(lists ...[]Case) (all []Case) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// service.go
var services = []Case{
	{Name: "Services should serve a basic endpoint from pods [Conformance]", In: routed},
	{Name: "Services should serve multiport endpoints from pods [Conformance]", In: routed},
	{Name: "Services should be updated after adding or deleting ports", In: routed},
	{Name: "Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]",
		Why: "a pod's node can keep the pod's address, because replies pass it; behind a gateway they would go " +
			"another way"},
	{Name: "Services should allow pods to hairpin back to themselves through services", In: routed},
	{Name: "Services should be able to up and down services", In: routed},
	{Name: "Services should work after the service has been recreated", In: routed},
	{Name: "Services should work after restarting kube-proxy [Disruptive]",
		Why: kubeProxys + "; for the gateway, see TestKill and TestHandOver"},
	{Name: "Services should work after restarting apiserver [Disruptive]",
		Why: "restarts an API server that is a pod, and here it is none; see TestOutage"},
	{Name: "Services should be able to create a functioning NodePort service [Conformance]", In: toGateway},
	{Name: "Services should be possible to connect to a service via ExternalIP when the external IP is not assigned " +
		"to a node", In: routed},
	{Name: "Services should be able to update service type to NodePort listening on same port number but different " +
		"protocols", In: toGateway},
	{Name: "Services should be able to change the type from ExternalName to ClusterIP [Conformance]", In: routed},
	{Name: "Services should be able to change the type from ExternalName to NodePort [Conformance]", In: toGateway},
	{Name: "Services should be able to change the type from ClusterIP to ExternalName [Conformance]", Why: onlyNames},
	{Name: "Services should be able to change the type from NodePort to ExternalName [Conformance]", Why: onlyNames},
	{Name: "Services should prevent NodePort collisions", Why: onlyObjects},
	{Name: "Services should check NodePort out-of-range", Why: onlyObjects},
	{Name: "Services should release NodePorts on delete", Why: onlyObjects},
	{Name: "Services should create endpoints for unready pods", In: routed},
	{Name: "Services should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is " +
		"true", In: gatewayFirst},
	{Name: "Services should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses " +
		"is false",
		In: gatewayFirst, By: "no_endpoints", Alone: true},
	{Name: "Services should have session affinity work for service with type clusterIP [LinuxOnly] [Conformance]",
		In: routed},
	{Name: "Services should have session affinity timeout work for service with type clusterIP [LinuxOnly]",
		Why: samePin},
	{Name: "Services should be able to switch session affinity for service with type clusterIP [LinuxOnly] " +
		"[Conformance]", In: routed},
	{Name: "Services should have session affinity work for NodePort service [LinuxOnly] [Conformance]",
		In: gatewayFirst},
	{Name: "Services should have session affinity timeout work for NodePort service [LinuxOnly]", Why: samePin},
	{Name: "Services should be able to switch session affinity for NodePort service [LinuxOnly] [Conformance]",
		In: gatewayFirst},
	{Name: "Services should implement service.kubernetes.io/service-proxy-name", In: routed},
	{Name: "Services should implement service.kubernetes.io/headless", In: routed},
	{Name: "Services should be rejected when no endpoints exist", In: routed, By: "no_endpoints", Alone: true},
	{Name: "Services should be rejected for evicted pods (no endpoints exist)", In: routed, By: "no_endpoints",
		Alone: true},
	{Name: "Services should respect internalTrafficPolicy=Local Pod to Pod", Why: localTraffic},
	{Name: "Services should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod", Why: localTraffic},
	{Name: "Services should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)",
		Why: localTraffic},
	{Name: "Services should support externalTrafficPolicy=Local for type=NodePort", In: onGateway},
	{Name: "Services should fail health check node port if there are only terminating endpoints",
		Why: "a pod asks its own node, which passes no NIC; health check node ports of a gateway: \"should implement " +
			"NodePort and HealthCheckNodePort correctly\""},
	{Name: "Services should fallback to terminating endpoints when there are no ready endpoints with " +
		"internalTrafficPolicy=Cluster", In: routed},
	{Name: "Services should fallback to local terminating endpoints when there are no ready endpoints with " +
		"internalTrafficPolicy=Local",
		Why: localTraffic},
	{Name: "Services should fallback to terminating endpoints when there are no ready endpoints with " +
		"externallTrafficPolicy=Cluster", In: below},
	{Name: "Services should fallback to local terminating endpoints when there are no ready endpoints with " +
		"externalTrafficPolicy=Local", In: below},
	{Name: "Services should find a service from listing all namespaces [Conformance]", Why: onlyObjects},
	{Name: "Services should complete a service status lifecycle [Conformance]", Why: onlyObjects},
	{Name: "Services should delete a collection of services [Conformance]", Why: onlyObjects},
	{Name: "Services should serve endpoints on same port and different protocols [Conformance]", In: routed},
	{Name: "Services should serve endpoints on same port and different protocol for internal traffic on Type " +
		"LoadBalancer", In: routed},
	{Name: "Services should allow creating a basic SCTP service with pod and endpoints [LinuxOnly] [Serial]",
		Why: onlyObjects},
	{Name: "Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
		In: allThree},
	{Name: "Services should connect to the ports exposed by restartable init containers", In: routed},
	{Name: "Services should connect to the named ports exposed by restartable init containers", In: routed},
	{Name: "Services should support named targetPorts that resolve to different ports on different endpoints",
		In: routed},
}

// loadbalancer.go
var balancers = []Case{
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to change the type and ports of a TCP service [Slow]",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to change the type and ports of a UDP service [Slow]",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should only allow access from service loadbalancer source ranges " +
		"[Slow]", In: routed},
	{Name: "LoadBalancers [Feature:LoadBalancer] should have session affinity work for LoadBalancer service with " +
		"Local traffic policy [Slow] [LinuxOnly]",
		In: onGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to switch session affinity for LoadBalancer service " +
		"with Local traffic policy [Slow] [LinuxOnly]",
		In: onGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should have session affinity work for LoadBalancer service with " +
		"Cluster traffic policy [Slow] [LinuxOnly]",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to switch session affinity for LoadBalancer service " +
		"with Cluster traffic policy [Slow] [LinuxOnly]",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should handle load balancer cleanup finalizer for service [Slow]",
		Why: "sends no packets: it is about who writes the status, and here that is this suite's own Balancer"},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to create LoadBalancer Service without NodePort and " +
		"change it [Slow]", In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to preserve UDP traffic when server pod cycles for a " +
		"LoadBalancer service on different nodes",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should be able to preserve UDP traffic when server pod cycles for a " +
		"LoadBalancer service on the same nodes",
		In: toGateway},
	{Name: "LoadBalancers [Feature:LoadBalancer] should not have connectivity disruption during rolling update with " +
		"externalTrafficPolicy=Cluster [Slow]",
		Why: tooLong},
	{Name: "LoadBalancers [Feature:LoadBalancer] should not have connectivity disruption during rolling update with " +
		"externalTrafficPolicy=Local [Slow]",
		Why: tooLong},
}

// loadbalancer.go, external policy Local
var localBalancers = []Case{
	{Name: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should work for type=LoadBalancer",
		In: onGateway},
	{Name: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should only target nodes with " +
		"endpoints",
		Why: "asks for the health of an IPv4 Service at the nodes' IPv6 addresses, too, where its node port is not: " +
			"the nodes have both; " +
			"health check node ports are in \"should implement NodePort and HealthCheckNodePort correctly\""},
	{Name: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should target all nodes with " +
		"endpoints",
		Why: "a VIP is routed to one gateway here, which serves its own node's endpoints; who spreads a VIP over " +
			"gateways is what routes it"},
	{Name: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should work from pods",
		In: fromPods, Alone: true},
}

// conntrack.go
var conntrack = []Case{
	{Name: "Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service",
		In: toGateway},
	{Name: "Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service",
		In: routed},
	{Name: "Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service with " +
		"InternalTrafficPolicy set to Local",
		Why: localTraffic},
	{Name: "Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and " +
		"client is hostNetwork", In: routed},
	{Name: "Conntrack should be able to preserve UDP traffic when initial unready endpoints get ready", In: routed},
	{Name: "Conntrack proxy implementation should not be vulnerable to the invalid conntrack state bug [Privileged]",
		In: routed},
	{Name: "Conntrack should be able to cleanup conntrack entries when UDP service target port changes for a " +
		"NodePort service", In: toGateway},
}

// networking.go
var granular = []Case{
	{Name: "Networking should provide Internet connection for containers [Feature:Networking-IPv4]",
		Why: "needs the Internet, and no Service"},
	{Name: "Networking should provide Internet connection for containers [Feature:Networking-IPv6] " +
		"[Experimental][LinuxOnly]",
		Why: "needs the Internet, and no Service"},
	{Name: "Networking should provider Internet connection for containers using DNS [Feature:Networking-DNS]",
		Why: "needs the Internet, and no Service"},
	{Name: "Networking should provide unchanging, static URL paths for kubernetes api services", Why: onlyObjects},
	{Name: "Networking should check kube-proxy urls", Why: kubeProxys},
	{Name: "Networking Granular Checks: Services should function for pod-Service: http", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should function for pod-Service: udp", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should function for pod-Service: sctp [Feature:SCTPConnectivity]",
		Why: noSCTP},
	{Name: "Networking Granular Checks: Services should function for node-Service: http", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should function for node-Service: udp", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should function for node-Service: sctp [Feature:SCTPConnectivity]",
		Why: noSCTP},
	{Name: "Networking Granular Checks: Services should function for endpoint-Service: http", Why: ownAddress},
	{Name: "Networking Granular Checks: Services should function for endpoint-Service: udp", Why: ownAddress},
	{Name: "Networking Granular Checks: Services should function for endpoint-Service: sctp [Feature:SCTPConnectivity]",
		Why: noSCTP},
	{Name: "Networking Granular Checks: Services should function for multiple endpoint-Services with same selector",
		Why: ownAddress},
	{Name: "Networking Granular Checks: Services should update endpoints: http", In: routed},
	{Name: "Networking Granular Checks: Services should update endpoints: udp", In: routed},
	{Name: "Networking Granular Checks: Services should update nodePort: http [Slow]", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should support basic nodePort: udp functionality", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should update nodePort: udp [Slow]", In: gatewayFirst},
	{Name: "Networking Granular Checks: Services should function for client IP based session affinity: http " +
		"[LinuxOnly]", In: routed},
	{Name: "Networking Granular Checks: Services should function for client IP based session affinity: udp [LinuxOnly]",
		In: routed},
	{Name: "Networking Granular Checks: Services should be able to handle large requests: http", In: routed},
	{Name: "Networking Granular Checks: Services should be able to handle large requests: udp", In: routed},
	{Name: "Networking Granular Checks: Services should function for service endpoints using hostNetwork",
		In: gatewayFirst, Alone: true},
	{Name: "Networking should recreate its iptables rules if they are deleted [Disruptive]", Why: kubeProxys},
	{Name: "Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial]", Why: onlyObjects},
}

// dual_stack.go
var dualStack = []Case{
	{Name: "[Feature:IPv6DualStack] should have at least one dual-stack node", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to pod ips", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to host ips", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should be able to reach pod on ipv4 and ipv6 ip", Why: podToPod},
	{Name: "[Feature:IPv6DualStack] should create a single stack service with cluster ip from primary service range",
		Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create service with ipv4 cluster ip", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create service with ipv6 cluster ip", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create service with ipv4,v6 cluster ip", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] should create service with ipv6,v4 cluster ip", Why: onlyObjects},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"pod-Service: http", In: gatewayFirst},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"pod-Service: udp", In: gatewayFirst},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"pod-Service: sctp [Feature:SCTPConnectivity]", Why: noSCTP},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"node-Service: http", In: gatewayFirst},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"node-Service: udp", In: gatewayFirst},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"endpoint-Service: http", Why: ownAddress},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"endpoint-Service: udp", Why: ownAddress},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should update " +
		"endpoints: http", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should update " +
		"endpoints: udp", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"client IP based session affinity: http [LinuxOnly]", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"client IP based session affinity: udp [LinuxOnly]", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should be able to " +
		"handle large requests: http", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should be able to " +
		"handle large requests: udp", In: routed},
	{Name: "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for " +
		"service endpoints using hostNetwork", In: gatewayFirst, Alone: true},
}

// endpointslice.go, pod_lifecycle.go, service_cidrs.go, kube_proxy.go
var others = []Case{
	{Name: "EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods " +
		"[Conformance]", Why: onlyObjects},
	{Name: "EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service [Conformance]",
		Why: onlyObjects},
	{Name: "EndpointSlice should support creating EndpointSlice API operations [Conformance]", Why: onlyObjects},
	{Name: "EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices " +
		"[Conformance]", In: routed},
	{Name: "EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices " +
		"[Conformance]", In: routed},
	{Name: "Connectivity Pod Lifecycle should be able to connect from a Pod to a terminating Pod", Why: podToPod},
	{Name: "Connectivity Pod Lifecycle should be able to connect to other Pod from a terminating Pod", Why: podToPod},
	{Name: "Connectivity Pod Lifecycle should be able to have zero downtime on a Blue Green deployment using " +
		"Services and Readiness Gates", In: routed},
	{Name: "Service CIDRs should create Services and serve on different Service CIDRs", In: toGateway},
}
