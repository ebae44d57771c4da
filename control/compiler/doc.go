// Package compiler turns objects into Snapshots, and says what the kernel program must open and
// close for them.
//
//	objects.Changes ──▶ Compile ──┬──▶ services.Snapshot   immutable; what did not change is shared
//	Config, Drain ────────────────┼──▶ objects.Problem     what is not served, or not as written
//	                              └──▶ steer.Change        what the kernel program opens and closes
//
// A unit is one Service and the EndpointSlices that name it: what is compiled as a whole. One
// compile (run.go) notes what changed and builds the units it concerns:
//
//	claims.go, contest.go       frontends that a unit asks for, and who has them
//	limits.go                   what one Service may have, and all together
//	build.go, sets.go           endpoints, and those of them that take new flows (choose.go)
//	tables.go, turns.go         Maglev tables and turns, one copy of equal ones
//	shares.go, ranges.go        weights of endpoints, clients that may use a frontend
//	identities.go, inherit.go   numbers of backends and services, given out and taken back
//	unpin.go                    pins of session affinity that are lost
//	selfcheck.go, facts.go      a few units compiled from nothing, and compared
//
// The same objects, configuration and drains lead to the same table whatever order they came
// in, and a Full compile equals the incremental one, but for those numbers. A Compiler has no
// goroutine, clock or file: it is used by one goroutine, and reports what changed.
//
// Of control it imports objects, steer and maglev; not the tracker, which hands out Changes, nor
// the loop, which publishes and steers.
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
// # Numbers
//
// Numbers of backends and services that a new snapshot lacks are used again only when no worker
// can hold an older one (Release), and those of backends only when no flow counts under them
// (WatchFlows); nobody waits for that, leftovers are looked at again.
package compiler
