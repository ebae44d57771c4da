package conformance

import (
	"fmt"
	"time"
)

func (b *cases) affinity() {
	three := []string{"b0", "b1", "b2"}
	c := b.add("Service/sessionAffinity: ClientIP + Where kube-proxy's modes disagree/affinity key + Affinity/the "+
		"client's address and the service port", "one-backend")
	f := c.service(affinity(10800), external).slice("", three...)
	c.sticks("tcp", outside, "one from gateway", f.vip4(), f.node4(), f.external4(), f.cluster4()).
		sticks("udp", outside, "one from gateway", f.vip4(), f.node4(), f.external4()).
		sticks("tcp", other, "one from gateway", f.vip6(), f.node6(), f.external6(), f.cluster6()).
		sticks("tcp", crowd, "several from gateway", f.vip4())

	c = b.add("Service/sessionAffinity: ClientIP", "policy-local")
	f = c.service(affinity(10800), local).slice("", "b0 @gateway", "b1 @gateway", "b2")
	c.sticks("tcp", outside, "one from client", f.vip4(), f.node4()).tcp(crowd, "b0 b1 from client", f.vip4())

	c = b.add("Affinity/two ports of a Service do not share it", "two-ports")
	f = c.service(affinity(10800), anotherPort).slice("", "b0")
	c.tcp(crowd, viaB0, f.vip4()).then("others instead of b0, for the second port too")
	f.slice("", "b0", "b1", "b2")
	c.tcp(crowd, viaB0, f.vip4()).sticks("tcp", crowd, "several from gateway", f.vip4().at(81))

	c = b.add("Affinity/a new endpoint", "pins-stay")
	f = c.service(affinity(10800)).slice("", "b0")
	c.tcp(crowd, viaB0, f.vip4()).udp(crowd, viaB0, f.vip4()).then("more endpoints")
	f.slice("", three...)
	c.tcp(crowd, viaB0, f.vip4(), f.node4()).udp(crowd, viaB0, f.vip4())

	c = b.add("Affinity/a backend that leaves", "loses-its-clients")
	f = c.service(affinity(10800)).slice("", "b0")
	c.tcp(crowd, viaB0, f.vip4()).then("b1 instead")
	f.slice("", "b1")
	c.tcp(crowd, viaB1, f.vip4()).then("b0 comes back")
	f.slice("", "b0", "b1")
	c.tcp(crowd, viaB1, f.vip4())

	c = b.add("Affinity/timeoutSeconds", "over")
	f = c.service(affinity(1)).slice("", "b0")
	c.tcp(crowd, viaB0, f.vip4()).then("more than a second later, with another endpoint")
	f.slice("", "b0", "b1")
	c.tcp(crowd, "b0 b1 from gateway", f.vip4())
}

func (b *cases) choosing() {
	three := []string{"b0", "b1", "b2"}
	for _, s := range [...]struct{ row, name, want string }{
		{"maglev", "maglev", "several from gateway"}, {"random", "random", "several from gateway"},
		{"sh, dh", "sh", "one from gateway"}, {"sh, dh", "dh", "one from gateway"},
		{"rr, wrr", "rr", "several from gateway"}, {"rr, wrr", "wrr", "several from gateway"},
	} {
		c := b.add("Choosing a backend/"+s.row+" + Service/annotation sluice.dev/scheduler", s.name)
		f := c.service(annotation("sluice.dev/scheduler", s.name)).slice("", three...)
		c.sticks("tcp", outside, s.want, f.vip4())
	}
	for _, s := range [...]struct{ row, name string }{
		{"lc, wlc", "lc"}, {"lc, wlc", "wlc"}, {"sed, nq", "sed"}, {"sed, nq", "nq"},
	} {
		c := b.add("Choosing a backend/"+s.row+" + Service/annotation sluice.dev/scheduler", s.name)
		f := c.service(annotation("sluice.dev/scheduler", s.name)).slice("", three...)
		c.holds("tcp", outside, "b0 b1 b2 from gateway", f.vip4())
	}
	c := b.add("Service/annotation sluice.dev/weights", "zero")
	f := c.service(annotation("sluice.dev/weights", "10.72.0.100=0, fd72::64=0")).slice("", both...)
	c.tcp(outside, viaB1, f.vip4()).tcp(outside, viaB1, f.vip6())
}

func (b *cases) hairpin() {
	const row = "Whose address/a client that is the very endpoint it got"
	c := b.add(row, "policy-cluster")
	f := c.service().slice("", "b0")
	c.tcp(fromB0, viaB0, f.vip4()).tcp(fromB0, viaB0, f.vip6()).udp(fromB0, viaB0, f.vip4())

	c = b.add(row, "policy-local")
	f = c.service(local).slice("", "b0 @gateway")
	c.tcp(fromB0, viaB0, f.vip4()).tcp(fromB0, viaB0, f.vip6())

	c = b.add(row, "pod-elsewhere")
	f = c.service(local).slice("", "pod-b0")
	c.tcp(podB0, viaB0, f.vip4()).tcp(podB0, viaB0, f.vip6())
}

func (b *cases) disagreements() {
	const section = "Where kube-proxy's modes disagree/"
	c := b.add(section+"node port without endpoints, on a local address that is not selected", "pass")
	f := c.service()
	c.tcp(outside, passListen, f.node4Back()).tcp(outside, reject, f.node4())

	c = b.add(section+"node port on a VIP that is a local address", "not-selected")
	f = c.service(vip("10.72.0.1", "fd72::1"), servicePort(7080)).slice("", "b0")
	c.tcp(outside, viaB0, destination("VIP, an address of the node", "10.72.0.1", 7080)).
		tcp(outside, passListen, f.node4Back()).tcp(outside, viaB0, f.node4())

	c = b.add(section+"unknown port of a ClusterIP, unused ClusterIP", "default")
	f = c.service().slice("", "b0")
	c.tcp(outside, reject, f.cluster4().at(81)).tcp(outside, passRoute, destination("an unused ClusterIP",
		"10.101.0.1", 80)).
		tcp(outside, reject, f.cluster6().at(81))

	c = b.add(section+"unknown port of a VIP", "default")
	f = c.service(external).slice("", "b0")
	c.tcp(outside, reject, f.vip4().at(81)).tcp(outside, reject, f.vip6().at(81)).tcp(outside, reject,
		f.external4().at(81)).
		udp(outside, reject, f.vip4().at(81))

	const unsettled = "Not settled anywhere/"
	c = b.add(unsettled+"two Services that claim one frontend", "an-external-ip-takes-nothing")
	g := c.bare()
	f = c.service(func(f *front) { f.Spec.ExternalIPs = []string{g.vipOf(false), g.vipOf(true)} }).slice("", "b0")
	c.tcp(outside, viaB0, destination("its external IP", g.vipOf(false),
		80)).then("another Service gets it from the load balancer")
	c.put(g.Service)
	g.slice("", "b1")
	c.undefined("tcp", outside, viaB1, g.vip4()).undefined("udp", outside, viaB1, g.vip6()).tcp(outside, viaB0,
		f.vip4())

	c = b.add(unsettled+"two Services that claim one frontend", "the-older-keeps-it")
	f = c.service().slice("", "b0")
	c.tcp(outside, viaB0, f.vip4()).then("another Service gets the same VIP")
	g = c.service(vip(f.vipOf(false), f.vipOf(true))).slice("", "b1")
	c.undefined("tcp", outside, viaB0, f.vip4()).undefined("udp", outside, viaB0, f.vip6()).tcp(outside, viaB1,
		g.node4())
	c.then("the older goes")
	c.remove(f.Service)
	c.tcp(outside, viaB1, f.vip4()).tcp(outside, viaB1, f.vip6())

	c = b.add(unsettled+"an address that one Service lists in several ways", "guarded-as-the-load-balancer's")
	f = c.service(ranges("10.71.0.10/32"), func(f *front) { f.Spec.ExternalIPs = []string{f.vipOf(false)} }).slice("",
		"b0")
	c.tcp(outside, viaB0, f.vip4()).undefined("tcp", other, drop, f.vip4())

	const purpose = "Different on purpose/"
	c = b.add(purpose+"VIPs answer ping", "ping")
	f = c.service(external).slice("", "b0")
	c.ping("echo reply", f.vip4()).ping("echo reply", f.vip6()).ping("echo reply", f.cluster4()).ping("echo reply",
		f.external4())

	c = b.add(purpose+"An unanswered SYN", "another-endpoint")
	f = c.service().slice("", "b0", silent4)
	c.last().put = c.last().put[:1] // IPv4 has the silent one
	c.put(f.sliceOf("", "IPv4", "b0", silent4))
	c.probe(&probe{how: "tcp", from: outside, to: []dest{f.vip4()}, want: viaB0, n: 20, slow: 10 * time.Second})

	c = b.add(purpose+"A frontend among the gateway's own source ports", "refused")
	c.service(clusterIPType, servicePort(17000),
		func(f *front) { f.Spec.ExternalIPs = []string{"10.71.0.1"} }).slice("", "b0")
	c.tcp(outside, passListen, destination("the node's address", "10.71.0.1", 17000))
}

func (b *cases) configurations() {
	const section = "Node and configuration/"
	c := b.add(section+"nodeAddresses + Where kube-proxy's modes disagree/node-port addresses by default", "selected")
	f := c.service().slice("", "b0")
	c.tcp(outside, viaB0, f.node4()).tcp(outside, passListen, f.node4Back())
	c.with("nodeAddresses: []\n").tcp(outside, viaB0, f.node4()).tcp(outside, viaB0, f.node4Back())
	c.with("nodeAddresses: [10.72.0.0/24]\n").tcp(outside, passListen, f.node4()).tcp(outside, viaB0, f.node4Back())
	c.with("nodeAddresses: [primary]\n").tcp(outside, viaB0, f.node4()).tcp(outside, viaB0, f.node6()).tcp(outside,
		passListen, f.node4Back())

	c = b.add(section+"proxy.masqueradeAll + Whose address/ClusterIP, masqueradeAll", "pods-too")
	f = c.service().slice("", "b0")
	c.tcp(pod, "b0 from client", f.cluster4())
	c.with("proxy.masqueradeAll: true\n").tcp(pod, viaB0, f.cluster4()).tcp(pod, viaB0, f.cluster6()).tcp(outside,
		viaB0, f.cluster4())

	c = b.add("Whose address/ClusterIP + "+section+"proxy.clusterCIDRs", "nobody-is-a-pod")
	f = c.service().slice("", "b0")
	g := c.service(local).slice("", "b0 @gateway", "b1")
	c.with("proxy.clusterCIDRs: []\n").tcp(outside, viaB0, f.cluster4()).tcp(pod, viaB0, f.cluster4()).
		tcp(pod, "b0 from client", g.vip4())

	const rest = section + "proxy.clusterIPs, proxy.strictSourceRanges, proxy.scheduler"
	c = b.add(rest, "cluster-ips-off")
	f = c.service().slice("", "b0")
	c.with("proxy.clusterIPs: false\n").tcp(outside, passRoute, f.cluster4()).tcp(outside, viaB0, f.vip4())

	c = b.add(rest, "strict-source-ranges")
	f = c.service(external, ranges("10.71.0.10/32")).slice("", "b0")
	c.with("proxy.strictSourceRanges: true\n").tcp(other, drop, f.node4()).tcp(other, drop, f.external4()).tcp(other,
		viaB0, f.cluster4()).
		tcp(outside, viaB0, f.node4())

	c = b.add(rest, "scheduler")
	f = c.service().slice("", "b0", "b1", "b2")
	c.with("proxy.scheduler: sh\n").sticks("tcp", outside, "one from gateway", f.vip4())

	c = b.add("Where kube-proxy's modes disagree/unknown port of a VIP + Different on purpose/"+
		"Other ports and protocols of a VIP are refused + Where kube-proxy's modes disagree/unknown "+
		"port of a ClusterIP, unused ClusterIP", "settings")
	f = c.service().slice("", "b0")
	for _, p := range [...]struct{ policy, outcome string }{{"pass", passRoute}, {"drop", drop}} {
		c.with(fmt.Sprintf("unservedVIPPort: %s\n", p.policy)).tcp(outside, p.outcome, f.vip4().at(81)).tcp(outside,
			p.outcome, f.cluster6().at(81))
	}
}
