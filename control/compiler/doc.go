// Package compiler compiles objects into Snapshots, and returns the changes for the kernel program.
//
//	objects.Changes ──▶ Compile ──┬──▶ services.Snapshot   immutable; shares unchanged parts
//	Config, Drain ────────────────┼──▶ objects.Problem     an object or field that is not served
//	                              └──▶ steer.Change        frontends etc. to open and close in the kernel
//
// A unit is one Service and the EndpointSlices that name it: it is compiled as a whole. One compile
// (run.go) records what changed and builds the units that this affects. The state of a Compiler is
// divided among owners (state.go), and a file uses only files below it in this list:
//
//	compiler.go, selfcheck.go, facts.go  the API; a few units compiled from nothing, and compared
//	run.go                               one compile: its phases
//	build.go, members.go, frontends.go   a unit's endpoints and frontends, put into the snapshot
//	sets.go, deferred.go                 sets and their tables; another goroutine builds large ones
//	state.go                             the owners, and the draft of the next snapshot (draft.go)
//	admit.go                             admission: the units that are served if not all have room
//	claims.go, contest.go                frontends that a unit claims, and which unit has them
//	drain.go, endpointhealth.go          drains; the results of health checks of endpoints
//	healthcheck.go, problems.go, zones.go
//	inherit.go, identities.go, unpin.go  numbers of backends and services; pins that are lost
//	addresses.go, kept.go                addresses of the gateway, sources of replies
//	units.go, unit.go                    the units and their parts
//	merge.go, offers.go, shares.go       endpoints, ports and weights from a unit's slices
//	choose.go, policies.go, ranges.go    which endpoints take new flows, which clients are admitted
//	limits.go                            limits of one Service, of a namespace, and of all
//	tables.go, turns.go                  Maglev tables and turns, one copy of equal ones
//	config.go, permitted.go, names.go, member.go, claim.go, patch.go, relation.go
//
// The same objects, configuration and drains lead to the same table in any order of arrival, and a
// Full compile equals the incremental one, except for the numbers of backends and services. A
// Compiler has no goroutine, clock or file. One goroutine uses it.
//
// Of the packages of control it imports objects, steer and maglev. It does not import the tracker,
// which returns Changes, or the loop, which publishes and steers.
//
// # Served objects
//
// The semantics are kube-proxy's, for packets from outside; docs/kubernetes.md goes through them
// field by field. For each port of a Service these are frontends: the VIPs of
// status.loadBalancer.ingress (ipMode VIP or unset), spec.externalIPs, the node port on the node's
// addresses, and the ClusterIPs if the configuration enables them; each in the families of the
// Service's ClusterIPs. If two Services claim one frontend, the older one has it until it is
// deleted.
//
// In each family a service port has up to two sets of endpoints that may take new
// flows:
//
//	cluster   the ready ones that topology hints leave; if none is ready, all that
//	          terminate and still serve
//	local     the same of this node only, regardless of hints
//
// A frontend has a Rule for clients outside and one for pods. A rule has a set, and whether the
// client's address is kept (policies). Where it may be kept, the kernel program steers the
// endpoints' replies by their source (KeepSource).
//
// Ignored are: type ExternalName, headless Services, the label
// service.kubernetes.io/service-proxy-name, and EndpointSlices labelled
// service.kubernetes.io/headless.
//
// If a field that an API server sets is missing, these defaults hold: namespace "default", the
// empty name for a port, and spec.ipFamilies for a Service without ClusterIPs. But a Service with a
// uid comes from an API server, and is skipped if it has no ClusterIPs.
//
// # Refused objects
//
// An object can have three kinds of faults. None of them affects another object:
//
//   - It is malformed: no API server would have accepted it. Its last good version stays in use.
//   - It has neither ClusterIPs nor IP families: the whole Service is refused.
//   - A part of it cannot be served: a VIP or an endpoint with an address that no packet can be
//     sent to, an endpoint whose address is a VIP or source address of this gateway, a frontend
//     that another Service has. That part is refused.
//
// Each is a Problem of severity refused. A Warning concerns an object that is served differently
// from its text: an annotation cannot be parsed, or a source range beside valid ones is invalid.
//
// # Numbers
//
// A number of a backend or service that is not in a new snapshot is used again only after every
// worker has left the older snapshots (Release). The number of a backend must moreover have no
// flows (WatchFlows). The compiler does not wait for that: the loop calls it again later.
package compiler
