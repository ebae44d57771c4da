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
// The semantics are those of kube-proxy for packets from outside. For each port
// of a Service these are frontends: the VIPs of status.loadBalancer.ingress
// (ipMode VIP or unset), spec.externalIPs, and the node port on the node's
// addresses; each in the families that the Service has a ClusterIP of. New flows go
// to the ready endpoints, or if there are none to those that terminate and still
// serve; under external traffic policy Local, to this node's alone, with the
// client's address kept. If two Services ask for one frontend, the older has it
// until it goes.
//
// Not looked at: type ExternalName, headless Services, the label
// service.kubernetes.io/service-proxy-name, and EndpointSlices labelled
// service.kubernetes.io/headless.
//
// Where an object comes without what an API server adds, a missing namespace is
// "default", a missing port name is the empty one, and a Service without
// ClusterIPs is served in spec.ipFamilies.
//
// # What is not served
//
// Three things can be wrong with an object, and none of them ever concerns
// another object:
//
//   - It is malformed: no API server would have taken it. Its last good version stays.
//   - It asks for something that is not honoured: session affinity, source ranges,
//     SCTP. The whole Service is refused, because serving it without would be wrong.
//   - A part of it cannot be served: a VIP or an endpoint with an address nothing
//     can be sent to, an endpoint whose address is a VIP or source address of this
//     gateway, a frontend that another Service has. That part is refused.
//
// Each is a Problem of severity refused. A Warning is for what is served as well
// as asked, but not in everything: topology hints are a preference that is not
// followed, and a health check node port is left to the kernel.
//
// # Time
//
// A Snapshot is published by one atomic store. Numbers of backends and services
// that a new snapshot lacks are used again only when no worker can hold an older
// one (Publisher.Oldest); nobody waits for that, leftovers are looked at again.
package control
