package conformance

import corev1 "k8s.io/api/core/v1"

// established is the flows that the cases of this file follow: one kind each, through a
// VIP of a Service with backend b0.
func (c *Case) established(f *front, tcp, udp string) *Case {
	return c.keeps("tcp", "tcp", outside, tcp, f.vip4()).keeps("tcp6", "tcp", outside, tcp, f.vip6()).
		keeps("udp", "udp", outside, udp, f.vip4()).keeps("udp6", "udp", outside, udp, f.vip6())
}

const viaB0, viaB1 = "b0 from gateway", "b1 from gateway"

func (b *cases) endpointChanges() {
	c := b.add("Established flows/endpoint added", "stay")
	f := c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("another endpoint")
	f.slice("", "b0", "b1")
	c.established(f, viaB0, viaB0).tcp(outside, "b0 b1 from gateway", f.vip4()).udp(outside, "b0 b1 from gateway",
		f.vip4())

	c = b.add("Established flows/endpoint terminating, serving", "stay")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("terminating, another is ready")
	f.slice("", "b0 term", "b1")
	c.established(f, viaB0, viaB0).tcp(outside, viaB1, f.vip4())

	c = b.add("Established flows/endpoint not serving + EndpointSlice/neither", "udp-moves")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("terminating and not serving, another is ready")
	f.slice("", "b0 gone", "b1")
	c.established(f, viaB0, viaB1).tcp(outside, viaB1, f.vip4())

	c = b.add("Established flows/endpoint removed", "udp-moves")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("another instead")
	f.slice("", "b1")
	c.established(f, viaB0, viaB1).tcp(outside, viaB1, f.vip4()).udp(outside, viaB1, f.vip6())

	c = b.add("Established flows/endpoint removed", "client-kept")
	f = c.service(local).slice("", "b0 @gateway")
	c.established(f, "b0 from client", "b0 from client").then("another instead")
	f.slice("", "b1 @gateway")
	c.established(f, "b0 from client", "b1 from client").tcp(outside, "b1 from client", f.vip4())

	c = b.add("Established flows/endpoint removed + Not settled anywhere/SCTP flows of removed endpoints", "sctp-stays")
	f = c.service(withSCTP).slice("", "b0")
	c.associates("a", outside, viaB0, f.vip4()).then("another instead")
	f.slice("", "b1")
	c.associates("a", outside, viaB0, f.vip4()).sctp(outside, viaB1, f.vip4())

	c = b.add("Established flows/target port changed", "udp-moves")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("port 8081 instead")
	f.edit("", targetPort(8081), "b0")
	c.established(f, viaB0, "b0:8081 from gateway").tcp(outside, "b0:8081 from gateway", f.vip4())
}

func (b *cases) lastAndFirstEndpoint() {
	const zero = "Established flows/service goes to zero endpoints"
	c := b.add(zero+" + Different on purpose/UDP flows end with their endpoint", "slice-empty")
	f := c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("no endpoint")
	f.slice("")
	c.established(f, viaB0, reject).tcp(outside, reject, f.vip4()).udp(outside, reject, f.vip6())

	c = b.add("Established flows/zero to first endpoint", "served")
	f = c.service()
	c.tcp(outside, reject, f.vip4()).keeps("udp", "udp", outside, reject, f.vip4()).then("the first endpoint")
	f.slice("", "b0")
	c.tcp(outside, viaB0, f.vip4()).keeps("udp", "udp", outside, viaB0, f.vip4())

	c = b.add("Established flows/endpoint removed", "slice-deleted-and-made-again")
	f = c.service().slice("-1", "b0").slice("-2", "b1 notready")
	c.established(f, viaB0, viaB0).then("its slice is gone")
	c.remove(f.sliceOf("-1", corev1.IPv4Protocol), f.sliceOf("-1", corev1.IPv6Protocol))
	f.slice("-2", "b1")
	c.established(f, viaB0, viaB1).then("back")
	f.slice("-1", "b0")
	c.established(f, viaB0, viaB1).tcp(outside, "b0 b1 from gateway", f.vip4())
}

func (b *cases) serviceChanges() {
	const row = "Service/any of it changes"
	c := b.add(row+" + Established flows/service port, node port or VIP changed", "port")
	f := c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("port 81 instead")
	f = f.copy(servicePort(81))
	c.established(f, viaB0, viaB0).tcp(outside, reject, f.vip4()).tcp(outside, viaB0, f.vip4().at(81)).udp(outside,
		viaB0, f.vip6().at(81))

	c = b.add(row+" + Established flows/service port, node port or VIP changed", "node-port")
	f = c.service().slice("", "b0")
	c.keeps("t", "tcp", outside, viaB0, f.node4()).keeps("u", "udp", outside, viaB0,
		f.node4()).then("another node port")
	g := f.copy(otherNodePort)
	next := destination("node port, the new one", "10.71.0.1", g.nodePort(2))
	c.keeps("t", "tcp", outside, viaB0, f.node4()).keeps("u", "udp", outside, viaB0, f.node4()).
		tcp(outside, passListen, f.node4()).tcp(outside, viaB0, next)

	c = b.add(row+" + Established flows/service port, node port or VIP changed", "vip")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("other VIPs")
	f.copy(vip(f.externalOf(false), f.externalOf(true)))
	c.established(f, viaB0, viaB0).tcp(outside, drop, f.vip4()).tcp(outside, viaB0, f.external4()).tcp(outside, viaB0,
		f.external6())

	c = b.add(row+" + Established flows/policy, range, affinity, hint change", "policy")
	f = c.service().slice("", "b0", "b1 @gateway notready")
	c.established(f, viaB0, viaB0).then("Local, with an endpoint here")
	f = f.copy(local)
	f.slice("", "b0", "b1 @gateway")
	c.established(f, viaB0, viaB0).tcp(outside, "b1 from client", f.vip4()).then("Cluster again")
	f = f.copy(clusterPolicy)
	c.established(f, viaB0, viaB0).tcp(outside, "b0 b1 from gateway", f.vip4())

	c = b.add(row+" + Established flows/policy, range, affinity, hint change", "ranges")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("somebody else's range")
	f.copy(ranges("192.0.2.0/24", "2001:db8:99::/64"))
	c.established(f, viaB0, viaB0).tcp(outside, drop, f.vip4()).tcp(outside, viaB0, f.node4())

	c = b.add(row, "type")
	f = c.service(external).slice("", "b0")
	c.established(f, viaB0, viaB0).keeps("n", "tcp", outside, viaB0,
		f.node4()).then("ClusterIP instead of LoadBalancer")
	f.copy(clusterIPType)
	c.established(f, viaB0, viaB0).keeps("n", "tcp", outside, viaB0, f.node4()).
		tcp(outside, drop, f.vip4()).tcp(outside, passListen, f.node4()).tcp(outside, viaB0, f.external4())

	c = b.add("Established flows/service deleted + Different on purpose/UDP flows end with their endpoint",
		"service-deleted")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("the Service and its slices are deleted")
	c.remove(f.Service, f.sliceOf("", corev1.IPv4Protocol), f.sliceOf("", corev1.IPv6Protocol))
	c.keeps("tcp", "tcp", outside, viaB0, f.vip4()).keeps("tcp6", "tcp", outside, viaB0, f.vip6()).
		keeps("udp", "udp", outside, drop, f.vip4()).
		tcp(outside, drop, f.vip4()).udp(outside, drop, f.vip6()).tcp(outside, passListen, f.node4())

	c = b.add("Different on purpose/UDP flows of an endpoint that is ready and not serving stay", "udp")
	f = c.service().slice("", "b0")
	c.established(f, viaB0, viaB0).then("b0 does not serve, and is ready; b1 serves")
	f.slice("", "b0 unserving", "b1")
	c.established(f, viaB0, viaB0).tcp(outside, "b0 b1 from gateway", f.vip4())
}
