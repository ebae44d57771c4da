package upstream

// An Arrangement decides which way a case's packets go; cases.md describes each. The
// cluster has three nodes in the order of their names, which is the order in which the cases take
// "the first node": a worker, the gateway, a worker.
//
//	client ─── gateway ─┬─ first worker
//	(e2e.test)          └─ last worker
//
// The gateway's node never runs kube-proxy, unless Everywhere is set; workers have their default
// route through the gateway.
type Arrangement struct {
	ID string
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

// arrangements are all of them, in the order in which a run goes through them.
var arrangements = []*Arrangement{
	{ID: "to the gateway", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{Gateway}, KubeProxy: true},
	{ID: "gateway first", Nodes: []Role{Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true},
	{ID: "on the gateway", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{FirstWorker}, KubeProxy: true},
	{ID: "three nodes", Nodes: []Role{FirstWorker, Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true},
	{ID: "kube-proxy below", Nodes: []Role{Gateway, LastWorker}, Avoid: []Role{Gateway}, KubeProxy: true,
		Everywhere: true},
	{ID: "routed", Nodes: []Role{FirstWorker, LastWorker}},
	{ID: "from pods", Nodes: []Role{FirstWorker, Gateway}, Avoid: []Role{FirstWorker}, Then: []Role{Gateway}},
}
