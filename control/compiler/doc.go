// Package compiler compiles objects into Snapshots, and returns what the kernel program must open
// and close for them.
//
//	objects.Changes ──▶ Compile ──┬──▶ services.Snapshot   immutable; what did not change is shared
//	Config, Drain ────────────────┼──▶ objects.Problem     what is not served, or not as written
//	                              └──▶ steer.Change        what the kernel program opens and closes
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
//	drain.go, endpointhealth.go          drains, and what checks say of endpoints
//	healthcheck.go, problems.go, zones.go
//	inherit.go, identities.go, unpin.go  numbers of backends and services; pins that are lost
//	addresses.go, kept.go                addresses of the gateway, sources of replies
//	units.go, unit.go                    the units, and what each consists of
//	merge.go, offers.go, shares.go       endpoints, ports and weights from a unit's slices
//	choose.go, policies.go, ranges.go    which endpoints take new flows, which clients are admitted
//	limits.go                            what one Service may have, and all together
//	tables.go, turns.go                  Maglev tables and turns, one copy of equal ones
//	config.go, permitted.go, names.go, member.go, claim.go, patch.go, relation.go
//
// The same objects, configuration and drains lead to the same table in any order of arrival, and a
// Full compile equals the incremental one, except for those numbers. A Compiler has no goroutine,
// clock or file. One goroutine uses it.
//
// Of the packages of control it imports objects, steer and maglev. It does not import the tracker,
// which returns Changes, or the loop, which publishes and steers.
//
// # What is served
//
// The semantics are those of kube-proxy for packets from outside; docs/kubernetes.md goes through
// them field by field. For each port of a Service these are frontends: the VIPs of
// status.loadBalancer.ingress (ipMode VIP or unset), spec.externalIPs, the node port on the node's
// addresses, and the ClusterIPs if the configuration enables them; each in the families that the
// Service has a ClusterIP of. If two Services claim one frontend, the older one has it until it is
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
// Where an object lacks what an API server adds, a missing namespace is "default", a missing port
// name is the empty name, and a Service without ClusterIPs is served in spec.ipFamilies. A Service
// with a uid, which comes from an API server, is skipped if it has no ClusterIPs.
//
// # What is not served
//
// Three things can be wrong with an object. None of them affects another object:
//
//   - It is malformed: no API server would have accepted it. Its last good version stays in use.
//   - It has neither ClusterIPs nor IP families: the whole Service is refused.
//   - A part of it cannot be served: a VIP or an endpoint with an address that no packet can be
//     sent to, an endpoint whose address is a VIP or source address of this gateway, a frontend
//     that another Service has. That part is refused.
//
// Each is a Problem of severity refused. A Warning is about what is served, but not entirely as
// written: an annotation that cannot be parsed, or an invalid source range beside valid ones.
//
// # Numbers
//
// The number of a backend or service that a new snapshot lacks is used again only after every
// worker has left the older snapshots (Release), and the number of a backend only when no flow
// counts under it (WatchFlows). Nothing blocks on that: the loop checks again later.
package compiler
