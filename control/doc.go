// Package control holds the packages of the control loop. It turns Kubernetes objects into the
// Snapshot that workers judge packets by, and tells the kernel program which packets to send
// them.
//
//	sources ──▶ Tracker ──Changes──▶ Compiler ──Snapshot──▶ Publisher ──▶ workers
//	(files,     coalesces,           pure, builds  └─Change──▶ Steering ──▶ kernel program
//	 k8s)       keeps last good      what changed
//	            tracker              compiler               └──── loop ────┘
//
// Where a rule is found:
//
//	objects    what a field of a Service, EndpointSlice or Node means, and what is wrong with it
//	tracker    which version of an object is used, and what changed
//	steer      the sets in which compiler, loop and kernel program speak
//	compiler   who has a frontend, which endpoints get flows, limits, numbers, self check
//	loop       when it is compiled, published, steered and closed
//
// Each imports only those above it; tracker, steer and compiler do not import each other but
// that the compiler imports steer (test/rules). The loop works on state, not on a
// history of events: the same objects, configuration and drains lead to the same table in any order
// of arrival, and a Full compile of Tracker.State equals the incremental one.
//
// Beside them: sources (files, k8s), servers (status, health, metrics), the state of the host
// (neigh, hostlink, ethtool), and the configuration (config).
package control
