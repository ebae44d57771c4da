package upstream

// An Arrangement decides which way a case's packets go. The cluster has three nodes in the order of
// their names, which is the order in which the cases take "the first node": a worker, the gateway,
// a worker.
//
//	client ─── gateway ─┬─ first worker
//	(e2e.test)          └─ last worker
//
// The gateway's node never runs kube-proxy, unless Everywhere is set; workers have their default
// route through the gateway.
type Arrangement struct {
	ID string
	// Text describes it in the table.
	Text string
	// Nodes take pods that name no node, and are the nodes that a case knows of; the others are
	// cordoned.
	Nodes []Role
	// Avoid is a node that pods come to only if they name it, or if no other is allowed
	// (PreferNoSchedule).
	Avoid []Role
	// Then replaces Avoid as soon as the first pod of the case is ready.
	Then []Role
	// KubeProxy runs on the workers. Without it they have no rules for Services, and all that pods
	// send to one leaves by the default route.
	KubeProxy bool
	// Everywhere: kube-proxy runs on the gateway's node, too, below XDP.
	Everywhere bool
}

// Role is the role of a node.
type Role int

// The nodes, in the order of their names.
const (
	FirstWorker Role = iota
	Gateway
	LastWorker
)

// The arrangements, in the order in which a run goes through them.
var (
	toGateway = &Arrangement{
		ID: "to the gateway", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{Gateway}, KubeProxy: true,
		Text: "Nodes are a worker and the gateway, in this order; pods that name no node run on the worker. Packets " +
			"for node ports of " +
			"the gateway's address come from a pod of the worker, packets for VIPs from the client.",
	}
	gatewayFirst = &Arrangement{
		ID: "gateway first", Nodes: []Role{Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true,
		Text: "The same with the gateway as the first node: cases that take the address of one node take the " +
			"gateway's.",
	}
	onGateway = &Arrangement{
		ID: "on the gateway", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{FirstWorker}, KubeProxy: true,
		Text: "Nodes are a worker and the gateway; pods that name no node run on the gateway's, where policy Local " +
			"needs them.",
	}
	allThree = &Arrangement{
		ID: "three nodes", Nodes: []Role{FirstWorker, Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true,
		Text: "Nodes are both workers and the gateway; pods that name no node run on workers.",
	}
	routed = &Arrangement{
		ID: "routed", Nodes: []Role{FirstWorker, LastWorker},
		Text: "No kube-proxy anywhere. Nodes are both workers; what their pods send to ClusterIPs, external IPs and " +
			"VIPs leaves by the " +
			"default route and meets the gateway. Without Sluice nothing answers.",
	}
	fromPods = &Arrangement{
		ID: "from pods", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{FirstWorker}, Then: []Role{Gateway},
		Text: "As routed, with the endpoint on the gateway's node and the client's pod on a worker.",
	}
	below = &Arrangement{
		ID: "kube-proxy below", Nodes: []Role{Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true,
		Everywhere: true,
		Text: "Gateway first, and kube-proxy runs on its node, too: what pods of that node send to the node's own " +
			"address never " +
			"passes a NIC, and is kube-proxy's. What comes from elsewhere is Sluice's, which takes it before the " +
			"kernel does.",
	}
)

// arrangements are all of them.
var arrangements = []*Arrangement{toGateway, gatewayFirst, onGateway, allThree, below, routed, fromPods}
