package conformance

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/test/bed/cluster"
)

func (b *cases) slices() {
	c := b.add("EndpointSlice/label kubernetes.io/service-name", "all-slices-count")
	f := c.service().slice("-1", "b0").slice("-2", "b1").slice("-3", "b2")
	c.tcp(outside, "b0 b1 b2 from gateway", f.vip4()).udp(outside, "b0 b1 b2 from gateway", f.vip6())

	c = b.add("EndpointSlice/label kubernetes.io/service-name", "without-it")
	f = c.service().edit("", withoutService, "b0")
	c.tcp(outside, reject, f.vip4()).udp(outside, reject, f.vip6())

	c = b.add("EndpointSlice/addressType", "host-names")
	f = c.service()
	fqdn := f.sliceOf("-fqdn", corev1.IPv4Protocol, "b0")
	fqdn.AddressType, fqdn.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN, []string{"b0.example.com"}
	c.put(fqdn)
	f.slice("", "b1")
	c.tcp(outside, "b1 from gateway", f.vip4())

	c = b.add("EndpointSlice/addressType", "each-family-its-own")
	f = c.service()
	c.put(f.sliceOf("", corev1.IPv4Protocol, "b0"), f.sliceOf("", corev1.IPv6Protocol, "b1"))
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b1 from gateway", f.vip6())

	c = b.add("EndpointSlice/addressType", "only-one-family")
	f = c.service()
	c.put(f.sliceOf("", corev1.IPv4Protocol, "b0"))
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, reject, f.vip6()).udp(outside, reject, f.node6())

	c = b.add("EndpointSlice/ports[]", "different-numbers")
	f = c.service()
	f.edit("-1", targetPort(8080), "b0").edit("-2", targetPort(8081), "b1").edit("-3", targetPort(8082), "b2")
	c.tcp(outside, "b0 b1:8081 b2:8082 from gateway", f.vip4()).udp(outside, "b0 b1:8081 b2:8082 from gateway",
		f.vip6())

	c = b.add("EndpointSlice/ports[]", "other-names-or-none")
	f = c.service()
	f.edit("-1", portNames("x"), "b0").edit("-2", func(s *discoveryv1.EndpointSlice) {
		for i := range s.Ports {
			s.Ports[i].Port = nil
		}
	}, "b1").slice("-3", "b2")
	c.tcp(outside, "b2 from gateway", f.vip4()).udp(outside, "b2 from gateway", f.vip4())
}

func (b *cases) endpointAddresses() {
	c := b.add("EndpointSlice/endpoints[].addresses", "the-first-counts")
	f := c.service().slice("", "b1 b0", "b2 b0")
	c.tcp(outside, "b1 b2 from gateway", f.vip4()).tcp(outside, "b1 b2 from gateway", f.vip6())

	c = b.add("EndpointSlice/... of this node", "host-network")
	f = c.service().slice("", "local")
	c.tcp(outside, "local from gateway", f.vip4(), f.node4()).tcp(outside, "local from gateway", f.vip6()).
		udp(outside, "local from gateway", f.vip4()).tcp(pod, "local from gateway", f.vip4())

	c = b.add("EndpointSlice/... of this node", "host-network-policy-local")
	f = c.service(local).slice("", "local", "b0")
	c.tcp(outside, "local from client", f.vip4(), f.node4()).tcp(outside, "local from client", f.vip6()).udp(outside,
		"local from client", f.vip4())

	c = b.add("EndpointSlice/... that cannot be a destination, or that is a VIP or source address of this gateway",
		"its-own-vip")
	f = c.service()
	f.slice("", "b0").edit("-vip", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses = []string{f.vipOf(s.AddressType == discoveryv1.AddressTypeIPv6)}
		number := int32(80)
		for i := range s.Ports {
			s.Ports[i].Port = &number
		}
	}, "b1")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.vip6())
}

func (b *cases) conditions() {
	c := b.add("EndpointSlice/nodeName", "exactly-this-node")
	f := c.service(local).slice("", "b0 nonode", "b1 @gateway.example.com", "b2 @gateway")
	c.tcp(outside, "b2 from client", f.vip4()).tcp(outside, "b2 from client", f.vip6())

	c = b.add("EndpointSlice/conditions", "missing")
	f = c.service().slice("", "b0 bare", "b1 notready")
	c.tcp(outside, "b0 from gateway", f.vip4()).udp(outside, "b0 from gateway", f.vip6())

	c = b.add("EndpointSlice/ready", "takes-new-flows")
	f = c.service().slice("", "b0", "b1 notready", "b2 unserving")
	c.tcp(outside, "b0 b2 from gateway", f.vip4()).udp(outside, "b0 b2 from gateway", f.vip4())

	const row = "EndpointSlice/terminating and serving"
	c = b.add(row, "not-while-one-is-ready")
	f = c.service().slice("", "b0 term", "b1")
	c.tcp(outside, "b1 from gateway", f.vip4()).udp(outside, "b1 from gateway", f.vip4())

	c = b.add(row, "when-none-is-ready")
	f = c.service().slice("", "b0 term", "b1 notready", "b2 gone")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.node6()).udp(outside,
		"b0 from gateway", f.vip4())

	c = b.add(row, "each-set-by-itself")
	f = c.service(local).slice("", "b0 @gateway term", "b1")
	c.tcp(outside, "b0 from client", f.vip4()).tcp(pod, "b1 from client", f.vip4()).tcp(outside, "b1 from gateway",
		f.cluster4())

	c = b.add("EndpointSlice/neither", "takes-none")
	f = c.service().slice("", "b0 serving", "b1 gone", "b2 notready")
	c.tcp(outside, reject, f.vip4()).tcp(outside, reject, f.node6()).udp(outside, reject, f.vip6())

	c = b.add("EndpointSlice/neither", "local-set-drops-for-one-elsewhere")
	f = c.service(local).slice("", "b0 @gateway gone", "b1 term")
	c.tcp(outside, drop, f.vip4())

	c = b.add("EndpointSlice/duplicates", "one-endpoint")
	f = c.service(local).slice("-1", "b0 @gateway term").slice("-2", "b0 @gateway", "b1")
	c.tcp(outside, "b0 from client", f.vip4())
	c = b.add("EndpointSlice/duplicates", "not-terminating-wins")
	f = c.service().slice("-1", "b0 term", "b1 term").slice("-2", "b0")
	c.tcp(outside, "b0 from gateway", f.vip4()).tcp(outside, "b0 from gateway", f.vip6())

	c = b.add("EndpointSlice/zone, hostname, targetRef", "not-read")
	f = c.service()
	f.edit("", func(s *discoveryv1.EndpointSlice) {
		name := "somebody"
		s.Endpoints[0].Hostname, s.Endpoints[0].TargetRef = &name, &corev1.ObjectReference{Kind: "Pod", Name: name,
			Namespace: "x"}
	}, "b0 inzone=b", "b1 inzone=a")
	c.tcp(outside, "b0 b1 from gateway", f.vip4())
}

func (b *cases) hints() {
	const row = "EndpointSlice/hints.forNodes, forZones"
	c := b.add(row+" + Node and configuration/label topology.kubernetes.io/zone", "zone")
	f := c.service().slice("", "b0 zone=a", "b1 zone=b", "b2 zone=b zone=a")
	c.tcp(outside, "b0 b2 from gateway", f.vip4(), f.node4(), f.cluster4()).tcp(outside, "b0 b2 from gateway",
		f.vip6()).
		udp(outside, "b0 b2 from gateway", f.vip4())

	c = b.add(row, "one-without-a-hint")
	f = c.service().slice("", "b0 zone=a", "b1")
	c.tcp(outside, "b0 b1 from gateway", f.vip4())

	c = b.add(row, "none-for-this-zone")
	f = c.service().slice("", "b0 zone=b", "b1 zone=c")
	c.tcp(outside, "b0 b1 from gateway", f.vip4())

	c = b.add(row, "node-before-zone")
	f = c.service().slice("", "b0 zone=a node=n9", "b1 zone=b node=gateway", "b2 zone=a node=n8")
	c.tcp(outside, "b1 from gateway", f.vip4()).tcp(outside, "b1 from gateway", f.cluster6())

	c = b.add(row, "no-node-hint-for-this-node")
	f = c.service().slice("", "b0 zone=a node=n9", "b1 zone=b node=n8")
	c.tcp(outside, "b0 from gateway", f.vip4())

	const other = "EndpointSlice/... policy Local, terminating endpoints"
	c = b.add(other, "policy-local")
	f = c.service(local).slice("", "b0 @gateway zone=b", "b1 @gateway zone=a", "b2 zone=a")
	c.tcp(outside, "b0 b1 from client", f.vip4()).tcp(outside, "b1 b2 from gateway", f.cluster4())

	c = b.add(other, "terminating")
	f = c.service().slice("", "b0 term zone=b", "b1 term zone=a")
	c.tcp(outside, "b0 b1 from gateway", f.vip4())

	c = b.add("Node and configuration/label topology.kubernetes.io/zone", "zone-changes")
	f = c.service().slice("", "b0 zone=a", "b1 zone=b")
	node := func(zone string) *corev1.Node { return gatewayNodeObject(zone) }
	c.tcp(outside, "b0 from gateway", f.vip4()).keeps("t", "tcp", outside, "b0 from gateway", f.vip4())
	c.alone("the Node moves to zone b").put(node("b"))
	c.tcp(outside, "b1 from gateway", f.vip4()).keeps("t", "tcp", outside, "b0 from gateway", f.vip4())
	c.alone("the Node has no zone").put(node(""))
	c.tcp(outside, "b0 b1 from gateway", f.vip4())
	c.alone("the Node is back in zone a").put(node(gatewayZone))
	c.tcp(outside, "b0 from gateway", f.vip4())
}

// gatewayNodeObject is the Node that the systems run on.
func gatewayNodeObject(zone string) *corev1.Node {
	return cluster.NewNode(gatewayNode, zone, backendAddress("local", false), backendAddress("local", true))
}
