// Package single runs a whole Kubernetes cluster on one machine, with a gateway in front of it:
// etcd, API server, controllers, scheduler, and nodes of kubelet, containerd and runc
// (test/bed/cluster/nodes).
//
//	client ── front ── gateway ── back ─┬─ worker0: kubelet, kube-proxy, pods
//	10.71/24           kubelet,         ├─ ...
//	                   no kube-proxy,   └─ control: API server, etcd, controllers, scheduler
//	                   Sluice's pod        10.72/24
//
// The gateway's node is tainted sluice.dev/gateway:NoSchedule. No kube-proxy runs on it, so only
// Sluice translates a Service's address there: a client that reaches such an address reaches it
// through Sluice. The client's default route leads to the gateway; so does that of the nodes. Pods
// have addresses of 10.244/16 and fd44::/48, a /24 and /64 for each node, and are reached by
// routes, untranslated.
//
// The caller installs the chart with Install, or anything else with Apply, and
// writes status.loadBalancer, as nobody else does.
package single
