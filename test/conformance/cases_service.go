package conformance

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Both backends, elsewhere.
var both = []string{"b0", "b1"}

func (b *cases) serviceTypes() {
	c := b.add("Service/spec.type", "external-name")
	c.service(func(f *front) {
		f.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com",
			Ports:       f.Spec.Ports[:1],
			ExternalIPs: []string{f.externalOf(false)}}
		f.Spec.Ports[0].NodePort = 0
		f.Status = corev1.ServiceStatus{}
	}).slice("", both...).tcpAll(outside, passRoute, (*front).external4)

	c = b.add("Service/spec.type + Service/externalIPs", "cluster-ip-with-external")
	f := c.service(clusterIPType, external).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.external4()).tcp(outside, "b0 b1 from gateway", f.external6()).
		udp(outside, "b0 b1 from gateway", f.external4()).tcp(outside, passRoute, f.vip4())

	c = b.add("Service/spec.type + Service/ports[].nodePort", "node-port")
	f = c.service(nodePortType).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.node4()).tcp(outside, "b0 b1 from gateway", f.node6()).
		udp(outside, "b0 b1 from gateway", f.node4()).udp(other, "b0 b1 from gateway", f.node6()).
		tcp(outside, passListen, f.node4Back()).
		tcp(outside, passRoute, f.vip4())

	c = b.add("Service/spec.clusterIP, clusterIPs", "headless")
	f = c.service(headless, external).slice("", both...)
	c.tcp(outside, passRoute, f.external4()).tcp(outside, passRoute, f.external6())

	c = b.add("Service/spec.clusterIP, clusterIPs", "one-family")
	f = c.service(onlyIPv4).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.vip4()).tcp(outside, passRoute, f.vip6()).
		tcp(outside, passListen, f.node6()).tcp(outside, passRoute, f.cluster6())

	c = b.add("Service/the ClusterIP itself + Whose address/ClusterIP", "routed")
	f = c.service(clusterIPType).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.cluster4()).tcp(outside, "b0 b1 from gateway", f.cluster6()).
		udp(outside, "b0 b1 from gateway", f.cluster4()).
		tcp(pod, "b0 b1 from client", f.cluster4()).tcp(pod, "b0 b1 from client", f.cluster6()).
		udp(pod, "b0 b1 from client", f.cluster4())
}

// tcpAll is one probe of TCP, for a case that needs nothing else of its Service.
func (f *front) tcpAll(from, want string, to func(*front) dest) { f.c.tcp(from, want, to(f)) }

func (b *cases) servicePorts() {
	c := b.add("Service/spec.ports[]", "same-number-in-tcp-and-udp")
	f := c.service()
	tcpOnly := func(ports ...int) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Ports = s.Ports[ports[0] : ports[0]+1] }
	}
	f.edit("-t", tcpOnly(0), "b0").edit("-u", tcpOnly(1), "b1")
	c.tcp(outside, "b0 from gateway", f.vip4(), f.node4()).udp(outside, "b1 from gateway", f.vip4(), f.node4()).
		tcp(outside, "b0 from gateway", f.vip6()).udp(outside, "b1 from gateway", f.vip6())

	c = b.add("Service/spec.ports[]", "one-vip-two-services")
	f = c.service().slice("", "b0")
	g := c.service(func(g *front) {
		vip(f.vipOf(false), f.vipOf(true))(g)
		servicePort(81)(g)
	}).slice("", "b1")
	_ = g
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b1 from gateway", f.vip4().at(81)).
		udp(outside, "b1 from gateway", f.vip6().at(81))

	c = b.add("Service/ports[].protocol", "sctp")
	f = c.service(withSCTP, external).slice("", "b1")
	c.sctp(outside, "b1 from gateway", f.vip4()).sctp(outside, "b1 from gateway", f.vip6()).
		sctp(outside, "b1 from gateway", f.node4()).sctp(outside, "b1 from gateway", f.external4()).
		tcp(outside, "b1 from gateway", f.vip4()).udp(outside, "b1 from gateway", f.vip4())

	c = b.add("Service/ports[].protocol", "sctp-local")
	f = c.service(withSCTP, local).slice("", "b0", "b1 @gateway")
	c.sctp(outside, "b1 from client", f.vip4()).sctp(outside, "b1 from client", f.vip6())

	c = b.add("Service/ports[].protocol", "sctp-without-endpoints")
	f = c.service(withSCTP)
	c.sctp(outside, reject, f.vip4()).sctp(outside, reject, f.vip6())

	c = b.add("Service/ports[].targetPort, appProtocol", "number-of-the-slice")
	f = c.service(func(f *front) {
		app := "example.com/anything"
		for i := range f.Spec.Ports {
			f.Spec.Ports[i].AppProtocol, f.Spec.Ports[i].TargetPort.IntVal = &app, 9999
		}
	})
	f.edit("", targetPort(8081), "b0")
	c.tcp(outside, "b0:8081 from gateway", f.vip4(), f.node4()).udp(outside, "b0:8081 from gateway", f.vip4())
}

func (b *cases) serviceAddresses() {
	c := b.add("Service/externalIPs", "load-balancer-with-external")
	f := c.service(external).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.external4(), f.vip4(), f.node4())

	c = b.add("Service/externalIPs", "an-address-of-the-node")
	c.service(clusterIPType, servicePort(7070),
		func(f *front) { f.Spec.ExternalIPs = []string{"10.71.0.1", "fd71::1"} }).slice("", "b0")
	c.with(`proxy.externalIPs: ["10.71.0.1/32", "fd71::1/128"]` + "\n")
	c.tcp(outside, "b0 from gateway", destination("the node's address", "10.71.0.1", 7070)).
		tcp(outside, "b0 from gateway", destination("the node's address", "fd71::1", 7070)).
		tcp(outside, passListen, destination("the node's address", "10.71.0.1", 7071))

	c = b.add("Service/status.loadBalancer.ingress[]", "mode-vip")
	f = c.service(ipMode(corev1.LoadBalancerIPModeVIP)).slice("", "b0")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.vip6())

	c = b.add("Service/status.loadBalancer.ingress[]", "mode-proxy")
	f = c.service(ipMode(corev1.LoadBalancerIPModeProxy)).slice("", "b0")
	c.tcp(outside, passRoute, f.vip4()).tcp(outside, passRoute, f.vip6()).tcp(outside, "b0 from gateway", f.node4())

	c = b.add("Service/status.loadBalancer.ingress[]", "host-name")
	f = c.service(func(f *front) {
		f.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
	}).slice("", "b0")
	c.tcp(outside, passRoute, f.vip4()).tcp(outside, "b0 from gateway", f.node6())

	c = b.add("Service/status.loadBalancer.ingress[]", "several")
	f = c.service(func(f *front) { vip(f.vipOf(false), f.vipOf(true), f.externalOf(false))(f) }).slice("", "b0")
	c.tcp(outside, "b0 from gateway", f.vip4(), f.external4()).tcp(outside, "b0 from gateway", f.vip6())

	c = b.add("Service/loadBalancerIP, loadBalancerClass, allocateLoadBalancerNodePorts", "class-without-node-ports")
	f = c.service(func(f *front) {
		class, no := "example.com/any", false
		f.Spec.LoadBalancerClass, f.Spec.AllocateLoadBalancerNodePorts = &class, &no
		f.Spec.LoadBalancerIP = f.externalOf(false)
		for i := range f.Spec.Ports {
			f.Spec.Ports[i].NodePort = 0
		}
	}).slice("", "b0")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.vip6()).
		tcp(outside, passListen, f.node4()).tcp(outside, passRoute, f.external4())
}

func (b *cases) sourceRanges() {
	const row = "Service/loadBalancerSourceRanges"
	c := b.add(row, "of-both-families")
	f := c.service(external, ranges("10.71.0.10/32", "fd71::a/128")).slice("", "b0")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.vip6()).udp(outside,
		"b0 from gateway", f.vip4()).
		tcp(other, drop, f.vip4()).tcp(other, drop, f.vip6()).udp(other, drop, f.vip4()).tcp(pod, drop, f.vip4()).
		tcp(other, "b0 from gateway", f.node4()).tcp(other, "b0 from gateway", f.external4()).tcp(other,
		"b0 from gateway", f.cluster4())

	c = b.add(row, "of-one-family")
	f = c.service(ranges("10.71.0.10/32")).slice("", "b0")
	c.tcp(other, drop, f.vip4()).tcp(other, "b0 from gateway", f.vip6())

	c = b.add(row, "zero-prefix")
	f = c.service(ranges("10.71.0.10/32", "0.0.0.0/0", "fd71::a/128")).slice("", "b0")
	c.tcp(other, "b0 from gateway", f.vip4()).tcp(other, drop, f.vip6())

	c = b.add(row, "policy-local")
	f = c.service(local, ranges("10.71.0.10/32")).slice("", "b0 @gateway")
	c.tcp(outside, "b0 from client", f.vip4()).tcp(other, drop, f.vip4()).tcp(other, "b0 from client", f.node4())

	c = b.add("Service/... with an address of this node in it", "vip-as-source")
	f = c.service(ranges("10.71.0.1/32")).slice("", "b0")
	// On the wire it is a land attack: the node's own traffic is not there.
	c.syn(f.vipOf(false), drop, f.vip4()).tcp(outside, drop, f.vip4())
	c = b.add("Service/... with an address of this node in it", "not-its-address")
	f = c.service(ranges("10.71.0.99/32")).slice("", "b0")
	c.syn(f.vipOf(false), drop, f.vip4())

	c = b.add("Service/... with an entry that is no CIDR + Different on purpose/A source range that cannot be read "+
		"never opens a family", "refused-by-the-api-server")
	f = c.bare(ranges("10.71.0.0/33"))
	c.refuse(f.Service)
	c.tcp(outside, passRoute, f.vip4())

	c = b.add("Where kube-proxy's modes disagree/source not allowed, and no endpoints", "drop")
	f = c.service(ranges("10.71.0.10/32"))
	c.tcp(other, drop, f.vip4()).tcp(outside, reject, f.vip4())
}

func (b *cases) policies() {
	const row = "Service/externalTrafficPolicy"
	c := b.add(row+" + Whose address/VIP, external IP, node port; policy Cluster", "cluster")
	f := c.service(external).slice("", "b0 @gateway", "b1")
	c.tcp(outside, "b0 b1 from gateway", f.vip4(), f.node4(), f.external4()).tcp(outside, "b0 b1 from gateway",
		f.vip6(), f.node6(), f.external6()).
		udp(outside, "b0 b1 from gateway", f.vip4(), f.node4(), f.external4()).
		tcp(pod, "b0 b1 from gateway", f.vip4(), f.node4(), f.external4())

	c = b.add(row+" + Node and configuration/node name + Whose address/the same; policy Local", "local")
	f = c.service(local, external).slice("", "b0 @gateway", "b1", "b2 @gateway-2")
	c.tcp(outside, "b0 from client", f.vip4(), f.node4(), f.external4()).tcp(outside, "b0 from client", f.vip6(),
		f.node6(), f.external6()).
		udp(outside, "b0 from client", f.vip4(), f.node4(), f.external4()).udp(outside, "b0 from client", f.vip6()).
		tcp(outside, "b0 b1 b2 from gateway", f.cluster4())

	c = b.add(row+" + Where kube-proxy's modes disagree/policy Local, none here", "local-none-here")
	f = c.service(local).slice("", "b0", "b1")
	c.tcp(outside, drop, f.vip4()).tcp(outside, drop, f.node6()).udp(outside, drop, f.vip4())

	c = b.add(row, "local-none-anywhere")
	f = c.service(local, external).slice("", "b0 notready")
	c.tcp(outside, reject, f.vip4()).tcp(outside, reject, f.vip6()).tcp(outside, reject, f.node4()).udp(outside, reject,
		f.external4())

	c = b.add(row, "cluster-ip-type-with-external")
	f = c.service(clusterIPType, external,
		func(f *front) { f.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }).slice("",
		"b0 @gateway", "b1")
	c.tcp(outside, "b0 from client", f.external4())

	c = b.add("Service/... Local, and the client is a pod + Node and configuration/proxy.clusterCIDRs",
		"pods-skip-the-policy")
	f = c.service(local, external).slice("", "b0 @gateway", "b1")
	c.tcp(pod, "b0 b1 from client", f.vip4(), f.node4(), f.external4()).tcp(pod, "b0 b1 from client", f.vip6()).udp(pod,
		"b0 b1 from client", f.vip4())

	c = b.add("Service/internalTrafficPolicy", "local")
	f = c.service(internalLocal).slice("", "b0 @gateway", "b1")
	c.tcp(outside, "b0 from gateway", f.cluster4()).tcp(pod, "b0 from client", f.cluster4()).tcp(pod, "b0 from client",
		f.cluster6()).
		tcp(outside, "b0 b1 from gateway", f.vip4(), f.node4())

	c = b.add("Service/internalTrafficPolicy", "local-none-here")
	f = c.service(internalLocal).slice("", "b0", "b1")
	c.tcp(outside, drop, f.cluster4()).tcp(pod, drop, f.cluster6()).tcp(outside, "b0 b1 from gateway", f.vip4())
}

func (b *cases) ignoredByProxies() {
	c := b.add("Service/publishNotReadyAddresses, trafficDistribution, selector", "what-the-slice-says")
	f := c.service(func(f *front) {
		near := corev1.ServiceTrafficDistributionPreferClose
		f.Spec.PublishNotReadyAddresses, f.Spec.TrafficDistribution = true, &near
		f.Spec.Selector = map[string]string{"app": "anything"}
	}).slice("", "b0 unserving", "b1 notready")
	c.tcp(outside, "b0 from gateway", f.vip4()).udp(outside, "b0 from gateway", f.vip4())

	const proxyName = "service.kubernetes.io/service-proxy-name"
	c = b.add("Service/label service.kubernetes.io/service-proxy-name", "present-removed-added")
	f = c.service(label(proxyName, "")).slice("", "b0")
	c.tcp(outside, passRoute, f.vip4()).tcp(outside, passListen, f.node4()).tcp(outside, passRoute, f.vip6())
	c.then("label removed")
	g := f.copy(func(f *front) { f.Labels = nil })
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.node4()).keeps("t", "tcp", outside,
		"b0 from gateway", f.vip4())
	c.then("label added")
	g.copy(label(proxyName, "somebody"))
	c.tcp(outside, drop, f.vip4()).tcp(outside, passListen, f.node4()).keeps("t", "tcp", outside,
		"b0 from gateway", f.vip4())

	const headlessLabel = "service.kubernetes.io/headless"
	c = b.add("Service/label service.kubernetes.io/headless", "on-the-service")
	f = c.service(label(headlessLabel, "")).slice("", "b0")
	// A slice that inherits the Service's labels would be headless itself.
	f.edit("", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, headlessLabel) }, "b0")
	c.tcp(outside, "b0 from gateway", f.vip4())

	c = b.add("Service/label service.kubernetes.io/headless", "on-a-slice")
	f = c.service().edit("", sliceLabel(headlessLabel, ""), "b0")
	c.tcp(outside, reject, f.vip4())

	c = b.add("Service/other annotations, also the beta one for source ranges", "not-read")
	f = c.service(annotation("service.beta.kubernetes.io/load-balancer-source-ranges", "192.0.2.0/24"),
		annotation("service.kubernetes.io/topology-mode", "Auto")).slice("", both...)
	c.tcp(outside, "b0 b1 from gateway", f.vip4())
}
