package conformance

import "fmt"

// counted is a health check node port's answer for a number of endpoints.
func (f *front) counted(n int) string {
	status := 503
	if n > 0 {
		status = 200
	}
	return fmt.Sprintf("%d, application/json, X-Content-Type-Options: nosniff, X-Load-Balancing-Endpoint-Weight: %d, "+
		"localEndpoints=%d, service.name=%s, service.namespace=%s, serviceProxyHealthy=true", status, n, n, f.Name,
		f.Namespace)
}

func (f *front) health4() dest {
	return destination("node port for health", "10.71.0.1", f.nodePort(3))
}
func (f *front) health6() dest { return destination("node port for health", "fd71::1", f.nodePort(3)) }

func (b *cases) health() {
	const row = "Service/healthCheckNodePort + Health/"
	c := b.add(row+"healthCheckNodePort counts local ready addresses", "counts")
	f := c.service(local, anotherPort).slice("-1", "b0 @gateway", "b2 @gateway term").slice("-2", "b1 @gateway",
		"b0 @gateway")
	c.http(outside, f.counted(2), f.health4(), "/").http(outside, f.counted(2), f.health6(), "/healthz").
		http(outside, passListen, destination("node port for health, address not selected", "10.72.0.1", f.nodePort(3)),
			"/")
	c.then("the last one here is terminating and serves")
	f.slice("-1", "b0 @gateway term", "b2").slice("-2")
	c.http(outside, f.counted(0), f.health4(), "/").tcp(outside, "b0 from client", f.vip4())

	c = b.add(row+"each family counts its own", "families")
	f = c.service(local)
	c.put(f.sliceOf("", "IPv4", "b0 @gateway"))
	c.http(outside, f.counted(1), f.health4(), "/").http(outside, f.counted(0), f.health6(), "/")

	c = b.add(row+"the port comes and goes with the Service", "comes-and-goes")
	f = c.service().slice("", "b0 @gateway")
	c.http(outside, passListen, f.health4(), "/").then("policy Local")
	g := f.copy(local)
	c.http(outside, f.counted(1), f.health4(), "/").then("policy Cluster")
	g.copy(clusterPolicy)
	c.http(outside, passListen, f.health4(), "/").then("deleted")
	c.remove(f.Service)
	c.http(outside, passListen, f.health4(), "/")

	c = b.add("Health//healthz and /livez of the node", "healthy")
	c.service().slice("", "b0")
	node := destination("the node's address", "10.71.0.1", 10256)
	const families = "status.IPv4.healthy=true, status.IPv4.lastUpdated, status.IPv6.healthy=true, " +
		"status.IPv6.lastUpdated"
	const plain = "200, application/json, X-Content-Type-Options: nosniff, currentTime, healthy=true, lastUpdated, "
	c.http(outside, plain+"nodeEligible=true, "+families, node, "/healthz").http(outside, plain+families, node,
		"/livez")

	c = b.add("Health//healthz and /livez of the node", "node-to-be-deleted")
	f = c.service(local).slice("", "b0 @gateway")
	n := gatewayNodeObject(gatewayZone)
	n.Spec.Taints = toBeDeleted
	c.alone("the autoscaler's taint").put(n)
	c.http(outside,
		"503, application/json, X-Content-Type-Options: nosniff, currentTime, healthy=true, lastUpdated, "+
			"nodeEligible=false, "+families, node, "/healthz").
		http(outside, plain+families, node, "/livez").http(outside, f.counted(1), f.health4(), "/").tcp(outside,
		"b0 from client", f.vip4())
	c.alone("the taint is gone").put(gatewayNodeObject(gatewayZone))
	c.http(outside, plain+"nodeEligible=true, "+families, node, "/healthz")
}
