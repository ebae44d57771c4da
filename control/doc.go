// Package control is the control loop: it turns Kubernetes objects into the
// Snapshot that workers judge packets by, and tells the kernel program which
// packets to send them.
//
//	sources ──▶ Tracker ──Changes──▶ Compiler ──Snapshot──▶ Publisher ──▶ workers
//	(files,     coalesces,           pure, builds  └─Steer──▶ Steering ──▶ kernel program
//	 k8s)       keeps last good      what changed
//
// The Loop is the one goroutine that does this. Everything it needs is state, not
// history: the same objects, configuration and drains lead to the same table
// whatever order they came in, and a Full compile of Tracker.State equals the
// incremental one.
//
// # What is served
//
// The semantics are those of kube-proxy for packets from outside; docs/kubernetes.md
// goes through them field by field. For each port of a Service these are frontends:
// the VIPs of status.loadBalancer.ingress (ipMode VIP or unset), spec.externalIPs,
// the node port on the node's addresses, and the ClusterIPs if the configuration says
// so; each in the families that the Service has a ClusterIP of. If two Services ask
// for one frontend, the older has it until it goes.
//
// In each family a service port has up to two sets of endpoints that may take new
// flows:
//
//	cluster   the ready ones that topology hints leave; if none is ready, all that
//	          terminate and still serve
//	local     the same of this node's alone, whatever hints say
//
// A frontend has a Rule for clients outside and one for pods; each names a set and
// says whether the client's address is kept (policies). Where it may be, the replies
// of the endpoints are caught by where they come from (KeepSource).
//
// Not looked at: type ExternalName, headless Services, the label
// service.kubernetes.io/service-proxy-name, and EndpointSlices labelled
// service.kubernetes.io/headless.
//
// Where an object comes without what an API server adds, a missing namespace is
// "default", a missing port name is the empty one, and a Service without
// ClusterIPs is served in spec.ipFamilies. With a uid, which an API server gave, a
// Service without ClusterIPs is skipped.
//
// # What is not served
//
// Three things can be wrong with an object, and none of them ever concerns
// another object:
//
//   - It is malformed: no API server would have taken it. Its last good version stays.
//   - It says neither ClusterIPs nor IP families: the whole Service is refused.
//   - A part of it cannot be served: a VIP or an endpoint with an address nothing
//     can be sent to, an endpoint whose address is a VIP or source address of this
//     gateway, a frontend that another Service has. That part is refused.
//
// Each is a Problem of severity refused. A Warning is for what is served, but not in
// everything as written: an annotation that cannot be read, a source range that is
// no CIDR beside others that are.
//
// # Time
//
// A Snapshot is published by one atomic store. Numbers of backends and services
// that a new snapshot lacks are used again only when no worker can hold an older
// one (Publisher.Oldest), and those of backends only when no flow counts under them
// (Compiler.WatchFlows); nobody waits for that, leftovers are looked at again.
package control
